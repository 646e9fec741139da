#include "client/gpu/staging_memory.h"

#include <algorithm>
#include <bit>
#include <string>
#include <thread>
#include <utility>

#include "common/system/thread.h"

namespace maypole {

StagingMemory::~StagingMemory() {
  if (never_free_) {
    new std::shared_ptr<Arena>(arena_);  // it stays mapped
    return;
  }
  std::vector<Allocation> all;
  for (const auto& [data, allocation] : allocations_) all.push_back(allocation);
  Free(driver_, arena_.get(), all);
}

void StagingMemory::Free(const cuda::Driver& driver, Arena* arena,
                         const std::vector<Allocation>& allocations) {
  for (const Allocation& a : allocations) {
    if (a.in_arena) {
      driver.cuMemHostUnregister(a.data);
      arena->Free(a.data);
    } else {
      driver.cuMemFreeHost(a.data);
    }
  }
}

Status StagingMemory::Take(uint64_t bytes, Block* block) {
  std::lock_guard lock(mutex_);
  if (bytes > kLargestSmall)
    return TakeLarge(RoundUp(bytes, kLargeStep), block);
  return TakeSmall(std::max(std::bit_ceil(bytes), kBlockAlignment), block);
}

Status StagingMemory::TakeSmall(uint64_t bytes, Block* block) {
  if (const auto kept = kept_.find(bytes); kept != kept_.end()) {
    *block = {kept->second, bytes};
    kept_.erase(kept);
    return Status();
  }
  if (slab_left_ < bytes) {
    // The rest of the old slab becomes blocks; each is a power of two.
    while (slab_left_ >= kBlockAlignment) {
      const uint64_t part = std::min(std::bit_floor(slab_left_), kLargestSmall);
      kept_.emplace(part, slab_);
      slab_ += part;
      slab_left_ -= part;
    }
    slab_left_ = 0;
    if (Status s = Allocate(kSlabBytes, &slab_); !s.ok()) return s;
    slab_left_ = kSlabBytes;
  }
  *block = {slab_, bytes};
  slab_ += bytes;
  slab_left_ -= bytes;
  return Status();
}

Status StagingMemory::TakeLarge(uint64_t bytes, Block* block) {
  // A block may serve a tensor of half its size, but not of less.
  const auto kept = kept_.lower_bound(bytes);
  if (kept != kept_.end() && kept->first / 2 <= bytes) {
    *block = {kept->second, kept->first};
    kept_large_ -= kept->first;
    kept_.erase(kept);
    return Status();
  }
  if (kept_large_ > std::max(allocated_ - kept_large_, kKeptAtLeast)) {
    FreeInBackground(TakeKeptLarge());
  }
  block->bytes = bytes;
  Status s = Allocate(bytes, &block->data);
  if (s.code() != Code::kResourceExhausted || kept_large_ == 0) return s;
  Free(driver_, arena_.get(), TakeKeptLarge());
  return Allocate(bytes, &block->data);
}

std::vector<StagingMemory::Allocation> StagingMemory::TakeKeptLarge() {
  std::vector<Allocation> taken;
  for (auto it = kept_.upper_bound(kLargestSmall); it != kept_.end();) {
    taken.push_back(allocations_.extract(it->second).mapped());
    allocated_ -= it->first;
    it = kept_.erase(it);
  }
  kept_large_ = 0;
  return taken;
}

void StagingMemory::FreeInBackground(std::vector<Allocation> allocations) {
  std::thread thread;
  const auto free = [driver = &driver_, arena = arena_, allocations] {
    Free(*driver, arena.get(), allocations);
  };
  if (!StartThread(free, &thread).ok()) return free();
  thread.detach();
}

void StagingMemory::Return(const Block& block) {
  std::lock_guard lock(mutex_);
  kept_.emplace(block.bytes, block.data);
  if (block.bytes > kLargestSmall) kept_large_ += block.bytes;
}

void StagingMemory::NeverFree() {
  std::lock_guard lock(mutex_);
  never_free_ = true;
}

Status StagingMemory::Allocate(uint64_t bytes, std::byte** data) {
  const bool in_arena = AllocateInArena(bytes, data);
  if (!in_arena) {
    void* memory = nullptr;
    const cuda::CUresult result =
        driver_.cuMemHostAlloc(&memory, bytes, cuda::CU_MEMHOSTALLOC_PORTABLE);
    if (result != cuda::CUDA_SUCCESS) {
      const Status why = CudaStatus(driver_, result, "cuMemHostAlloc");
      return Status(Code::kResourceExhausted,
                    "no page-locked host memory for " + std::to_string(bytes) +
                        " bytes of a CUDA tensor (" +
                        std::to_string(allocated_) +
                        " bytes are allocated for others): " + why.message());
    }
    *data = static_cast<std::byte*>(memory);
  }
  allocations_[*data] = {*data, bytes, in_arena};
  allocated_ += bytes;
  return Status();
}

bool StagingMemory::AllocateInArena(uint64_t bytes, std::byte** data) {
  if (arena_ == nullptr || !arena_->Allocate(bytes, data).ok()) return false;
  if (driver_.cuMemHostRegister(*data, bytes,
                                cuda::CU_MEMHOSTREGISTER_PORTABLE) ==
      cuda::CUDA_SUCCESS) {
    return true;
  }
  arena_->Free(*data);
  return false;
}

uint64_t StagingMemory::allocated() const {
  std::lock_guard lock(mutex_);
  return allocated_;
}

}  // namespace maypole
