#include "client/gpu/ready_words.h"

#include <new>
#include <utility>

namespace maypole {

ReadyWords::~ReadyWords() {
  if (page_ != nullptr) driver_.cuMemFreeHost(page_);
}

bool ReadyWords::Allocate() {
  if (std::exchange(tried_, true)) return page_ != nullptr;
  void* memory = nullptr;
  if (driver_.cuMemHostAlloc(
          &memory, kWords * sizeof(uint64_t),
          cuda::CU_MEMHOSTALLOC_PORTABLE | cuda::CU_MEMHOSTALLOC_DEVICEMAP) !=
      cuda::CUDA_SUCCESS) {
    return false;
  }
  if (driver_.cuMemHostGetDevicePointer(&device_page_, memory, 0) !=
      cuda::CUDA_SUCCESS) {
    driver_.cuMemFreeHost(memory);
    return false;
  }
  page_ = static_cast<std::atomic<uint64_t>*>(memory);
  for (size_t i = 0; i < kWords; ++i) {
    free_.push_back(new (page_ + i) std::atomic<uint64_t>(0));
  }
  return true;
}

bool ReadyWords::Take(const cuda::Gpu& device, ReadyWord* word) {
  if (!device.writes_values()) return false;
  std::lock_guard lock(mutex_);
  if (!Allocate() || free_.empty()) return false;
  *word = {free_.back(), ++last_value_};
  free_.pop_back();
  return true;
}

cuda::CUresult ReadyWords::Write(const ReadyWord& word,
                                 cuda::CUstream stream) const {
  const auto index = static_cast<uint64_t>(word.address - page_);
  return driver_.cuStreamWriteValue64(
      stream, device_page_ + index * sizeof(uint64_t), word.value,
      cuda::CU_STREAM_WRITE_VALUE_DEFAULT);
}

void ReadyWords::Return(const ReadyWord& word) {
  if (word.address == nullptr) return;
  std::lock_guard lock(mutex_);
  free_.push_back(word.address);
}

}  // namespace maypole
