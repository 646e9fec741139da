// OnGpu: for RankCore's tests, a tensor in GPU memory that a rank shares with
// its executor.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_CLIENT_TESTING_ON_GPU_TESTING_H_
#define MAYPOLE_CLIENT_TESTING_ON_GPU_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "client/testing/rank_core_testing.h"
#include "common/board/gpu_place.h"

namespace maypole {

using Values = std::vector<int32_t>;

// The tensor's values are in `gpu` until BringToHost() has been called three
// times.
class OnGpu : public StagedTensor {
 public:
  explicit OnGpu(Tensor* tensor) : gpu(tensor->input), tensor_(*tensor) {
    std::fill(tensor_.input.begin(), tensor_.input.end(), -1000);
  }
  std::byte* GatherInto(uint64_t) override { return nullptr; }
  Status BringToHost(Operation* op, bool* done) override {
    if (!error.ok()) return error;
    *done = ++asked >= 3;
    if (!*done) return Status();
    tensor_.input = gpu;
    op->input = reinterpret_cast<const std::byte*>(tensor_.input.data());
    if (Gathers(op->signature.kind)) return Status();
    tensor_.output.resize(gpu.size());
    op->output = reinterpret_cast<std::byte*>(tensor_.output.data());
    return Status();
  }
  void ResultOnGpu(uint64_t offset) override {
    EXPECT_FALSE(std::exchange(result_on_gpu, true));
    result_at = offset;
  }

  Values gpu;
  Status error;
  int asked = 0;
  bool result_on_gpu = false;
  uint64_t result_at = 0;

 private:
  Tensor& tensor_;
};

// `tensor` stays where it is. gpu: the number of the GPU.
inline std::shared_ptr<OnGpu> SubmitOnGpu(World& w, uint32_t rank, Tensor& t,
                                          uint32_t gpu = 0) {
  auto staged = std::make_shared<OnGpu>(&t);
  Operation& op = *t.op;
  op.set = w.cores[rank]->FindSet(op.signature.process_set);
  op.signature.dtype = DType::kInt32;
  op.signature.dims = 1;
  op.signature.shape[0] = static_cast<int64_t>(t.input.size());
  op.gpu_place = PackGpuPlace({.number = 1, .gpu = gpu, .offset = 512});
  op.gpu_room = 4096;
  op.staged = staged;
  EXPECT_TRUE(w.Start(rank, t.op).ok());
  return staged;
}

inline bool IsReady(const World& w, const Tensor& t) {
  return (w.board->ready_bits(t.op->slot / 64).load() >> t.op->slot % 64 & 1) !=
         0;
}

// Does what the executor does when the GPUs have executed the operation.
inline void Commit(World& w, const Tensor& t) {
  w.board->slot(t.op->slot).on_gpus.store(Tagged(t.op->generation, 1));
  EXPECT_EQ(w.board->Decide(t.op->slot, t.op->generation, Outcome::kCommitted),
            Outcome::kCommitted);
  EXPECT_NE(w.board->PlaceTicket(t.op->slot, t.op->generation, 0), kNoPlace);
}

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_TESTING_ON_GPU_TESTING_H_
