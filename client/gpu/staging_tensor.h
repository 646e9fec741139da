// Staging::Tensor: the memory of one operation, and what the GPU still does
// with it. For the files of Staging only.
//
// Thread contract: used by the submitting thread until the operation is
// started; then by the watching and the driver thread; from its end on, by
// threads that want the result, which lock `mutex`.
#ifndef MAYPOLE_CLIENT_GPU_STAGING_TENSOR_H_
#define MAYPOLE_CLIENT_GPU_STAGING_TENSOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "client/gpu/staged_resources.h"
#include "client/gpu/staging.h"

namespace maypole {

class Staging::Tensor : public StagedTensor {
 public:
  explicit Tensor(std::shared_ptr<Staging> staging)
      : staging_(std::move(staging)) {}
  ~Tensor() override {
    if (resources.brought != nullptr) staging_->EndToHost(this);
    staging_->Retire(resources);
  }
  std::byte* GatherInto(uint64_t bytes) override {
    return staging_->GatherInto(bytes, this);
  }
  Status BringToHost(Operation* operation, bool* done) override {
    return staging_->BringToHost(operation, this, done);
  }
  void ResultOnGpu(uint64_t offset) override {
    result = events != nullptr ? OwnResult() : shared + offset;
  }
  std::shared_ptr<RankRun> BeginOnRank(
      const RankPart& part,
      const std::vector<Operation*>& operations) override {
    return staging_->BeginOnRank(part, operations);
  }
  // Where this rank's NCCL writes the result.
  cuda::CUdeviceptr OwnResult() const {
    return resources.result.address != 0 ? resources.result.address : output;
  }
  bool on_gpu() const { return shared != 0 || events != nullptr; }

  std::string key;  // allgather, alltoall: of GatheredSizes
  uint64_t input_bytes = 0;
  cuda::CUdeviceptr output = 0;  // the operation's own; 0: none
  uint64_t output_bytes = 0;
  // Where the tensor lies in memory shared with the executor: the user's own
  // tensor, or resources.shared; 0: nowhere.
  cuda::CUdeviceptr shared = 0;
  cuda::CUdeviceptr result = 0;  // its address on the GPU; 0: it is on the host
  // This rank calls NCCL itself: then `shared` is the user's input (0: there is
  // none), and `result` the output, or resources.result.
  std::shared_ptr<RankEvents> events;
  std::atomic<uint32_t> looks{0};  // at the word
  std::atomic<bool> input_settled{false};
  OnInput on_input;  // see Watch(); constant while watched

  // Guards copied_to, copied_on and resources.copied_out: several threads may
  // want the result.
  std::mutex mutex;
  cuda::CUdeviceptr copied_to = 0;  // the last copy out
  cuda::CUstream copied_on = nullptr;
  StagedResources resources;

 private:
  const std::shared_ptr<Staging> staging_;
};

inline cuda::CUdeviceptr AddressOf(const std::byte* memory) {
  return reinterpret_cast<cuda::CUdeviceptr>(memory);
}

inline Status Bad(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

inline Staging::Tensor& Staging::TensorOf(const Operation& operation) {
  return static_cast<Tensor&>(*operation.staged);
}

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_STAGING_TENSOR_H_
