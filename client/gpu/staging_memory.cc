#include "client/gpu/staging_memory.h"

#include <algorithm>
#include <bit>
#include <string>

namespace maypole {
namespace {

constexpr uint64_t kLargestSmall = StagingMemory::kSlabBytes / 8;

}  // namespace

StagingMemory::~StagingMemory() {
  for (const Allocation& a : allocations_) {
    if (a.in_arena) {
      driver_.cuMemHostUnregister(a.data);
      arena_->Free(a.data);
    } else {
      driver_.cuMemFreeHost(a.data);
    }
  }
}

uint64_t StagingMemory::RoundUp(uint64_t bytes) {
  if (bytes <= kLargestSmall) {
    return std::max(std::bit_ceil(bytes), kBlockAlignment);
  }
  return (bytes + kLargeStep - 1) / kLargeStep * kLargeStep;
}

Status StagingMemory::Take(uint64_t bytes, Block* block) {
  const uint64_t rounded = RoundUp(bytes);
  std::lock_guard lock(mutex_);
  // A large block may serve a tensor of half its size, but not of less.
  const auto kept = kept_.lower_bound(rounded);
  if (kept != kept_.end() && kept->first / 2 <= rounded &&
      (rounded > kLargestSmall || kept->first == rounded)) {
    *block = {kept->second, kept->first};
    kept_.erase(kept);
    return Status();
  }
  if (rounded <= kLargestSmall) return TakeSmall(rounded, block);
  block->bytes = rounded;
  return Allocate(rounded, &block->data);
}

Status StagingMemory::TakeSmall(uint64_t bytes, Block* block) {
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

void StagingMemory::Return(const Block& block) {
  std::lock_guard lock(mutex_);
  kept_.emplace(block.bytes, block.data);
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
  allocations_.push_back({*data, bytes, in_arena});
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

void StagingMemory::Abandon() {
  std::lock_guard lock(mutex_);
  allocations_.clear();
}

uint64_t StagingMemory::allocated() const {
  std::lock_guard lock(mutex_);
  return allocated_;
}

}  // namespace maypole
