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
  cuda::CUdeviceptr address = 0;
  const cuda::CUresult result =
      driver_.cuMemHostGetDevicePointer(&address, word.address, 0);
  if (result != cuda::CUDA_SUCCESS) return result;
  return driver_.cuStreamWriteValue64(stream, address, word.value,
                                      cuda::CU_STREAM_WRITE_VALUE_DEFAULT);
}

void ReadyWords::Return(const ReadyWord& word) {
  if (word.address == nullptr) return;
  std::lock_guard lock(mutex_);
  free_.push_back(word.address);
}

void ReadyWords::Abandon() {
  std::lock_guard lock(mutex_);
  page_ = nullptr;
  free_.clear();
}

}  // namespace maypole
