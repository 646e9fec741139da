#include "client/gpu/private_gpu_memory.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "client/gpu/shared_gpu_memory.h"
#include "client/session/stall_notice.h"
#include "common/board/gpu_place.h"
#include "common/system/memory.h"

namespace maypole {

using cuda::CUDA_SUCCESS;
using cuda::CUdeviceptr;
using cuda::CurrentGpu;
using cuda::Gpu;

namespace {

void TellOnce(const Gpu& gpu, uint64_t bytes, uint64_t total) {
  static std::mutex mutex;
  static auto& told = *new std::set<std::string>;
  {
    std::lock_guard lock(mutex);
    if (!told.insert(gpu.uuid()).second) return;
  }
  TellUser("maypole: no memory of " + gpu.uuid() + " (" + gpu.name() +
           ") is left for the results of allgathers and alltoalls, so some "
           "are copied through host memory: " +
           std::to_string(bytes >> 20) + " MiB were wanted, and Maypole has " +
           std::to_string(total >> 20) +
           " MiB there; use smaller batches, or limit that by "
           "MAYPOLE_GPU_MEMORY_BYTES");
}

}  // namespace

PrivateGpuMemory::~PrivateGpuMemory() {
  for (const Segment& segment : segments_) {
    if (segment.taken > 0) continue;
    const CurrentGpu current(*segment.gpu);
    segment.gpu->driver().cuMemFree(segment.address);
  }
}

bool PrivateGpuMemory::unused() const {
  std::lock_guard lock(mutex_);
  return segments_.empty();
}

PrivateGpuMemory::Block PrivateGpuMemory::Take(const Gpu& gpu, uint64_t bytes) {
  if (bytes == 0 || bytes > kMaxGpuMemoryBytes / 2) return {};
  bytes = RoundUp(bytes, kGpuPlaceAlignment);
  if (const Block block = Find(gpu, bytes); block.address != 0) return block;
  std::lock_guard grow(grow_mutex_);
  const Block block = Find(gpu, bytes);  // another thread may have grown it
  if (block.address != 0 || !Grow(gpu, bytes)) return block;
  return Find(gpu, bytes);
}

PrivateGpuMemory::Block PrivateGpuMemory::Find(const Gpu& gpu, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  for (Segment& segment : segments_) {
    uint64_t offset = 0;
    if (segment.gpu != &gpu || !segment.free.Take(bytes, &offset)) continue;
    ++segment.taken;
    return {segment.address + offset, bytes};
  }
  return {};
}

void PrivateGpuMemory::Return(const Block& block) {
  if (block.address == 0) return;
  std::lock_guard lock(mutex_);
  for (Segment& segment : segments_) {
    if (block.address < segment.address ||
        block.address - segment.address >= segment.bytes) {
      continue;
    }
    --segment.taken;
    segment.free.Add(block.address - segment.address, block.bytes);
    return;
  }
}

uint64_t PrivateGpuMemory::BytesOf(const Gpu& gpu) const {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const Segment& segment : segments_) {
    if (segment.gpu == &gpu) bytes += segment.bytes;
  }
  return bytes;
}

uint64_t PrivateGpuMemory::LimitOf(const Gpu& gpu) const {
  if (limit_ >= 0) return static_cast<uint64_t>(limit_);
  size_t free = 0, total = 0;
  const bool known = gpu.driver().cuMemGetInfo(&free, &total) == CUDA_SUCCESS;
  return known ? total / 8 : 0;
}

// The new segment is as large as all of the GPU's together, within bounds, or
// as the block.
bool PrivateGpuMemory::Grow(const Gpu& gpu, uint64_t bytes) {
  const auto now = std::chrono::steady_clock::now();
  if (now < not_before_) return false;
  const CurrentGpu current(gpu);
  const uint64_t total = BytesOf(gpu);
  const uint64_t limit = LimitOf(gpu);
  const uint64_t room = limit > total ? limit - total : 0;
  if (bytes > room) return false;
  const uint64_t wanted = std::clamp(total, SharedGpuMemory::kSmallestSegment,
                                     SharedGpuMemory::kLargestStep);
  for (const uint64_t size : {std::min(std::max(wanted, bytes), room), bytes}) {
    Segment segment{.gpu = &gpu, .bytes = size};
    if (gpu.driver().cuMemAlloc(&segment.address, size) != CUDA_SUCCESS) {
      continue;
    }
    segment.free.Add(0, size);
    std::lock_guard lock(mutex_);
    segments_.push_back(std::move(segment));
    return true;
  }
  not_before_ = now + SharedGpuMemory::kRetryAfter;
  TellOnce(gpu, bytes, total);
  return false;
}

}  // namespace maypole
