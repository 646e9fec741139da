// CommunicatorsTest: a fixture for operations on several GPUs, of one node and
// of two.
#ifndef MAYPOLE_WORKER_CORE_TESTING_COMMUNICATORS_TESTING_H_
#define MAYPOLE_WORKER_CORE_TESTING_COMMUNICATORS_TESTING_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/board/gpu_place.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {

inline constexpr uint64_t kMegabyte = 1 << 20;
inline constexpr uint32_t kNccl = 22809;

class CommunicatorsTest : public ExecutorCoreTest {
 protected:
  CommunicatorsTest() : ExecutorCoreTest(kMaxSlots, kNccl) {}

  // Local rank 0 gets memory on one GPU, local rank 1 on another one.
  void OpenMemories(uint32_t gpu0, uint32_t gpu1) {
    uint32_t local = 0;
    for (const uint32_t gpu : {gpu0, gpu1}) {
      auto request = session::Make<session::GpuMemoryRequest>();
      request.number = 1;
      request.sharing = static_cast<uint32_t>(session::GpuSharing::kDescriptor);
      request.bytes = kMegabyte;
      core_.OnGpuMemoryRequest(1 + local, request);
      core_.OnGpuMemoryOpened({local, 1}, OpenedGpuMemory{.gpu = gpu});
      ++local;
    }
    Drop();
  }
  ReadySlot OnGpus(uint32_t slot, uint32_t generation, uint32_t gpu0,
                   uint32_t gpu1, DType dtype = DType::kFloat32) {
    return PutOnGpus(Ready(slot, generation, Kind::kAllreduce, 1000, 1000),
                     gpu0, gpu1, dtype);
  }
  static ReadySlot PutOnGpus(ReadySlot ready, uint32_t gpu0, uint32_t gpu1,
                             DType dtype = DType::kFloat32) {
    for (Signature& s : ready.signatures) {
      s.dtype = dtype;
      s.op = Op::kSum;
      s.postscale = 1.0;
    }
    ready.gpu_places = {PackGpuPlace({1, gpu0, 256}),
                        PackGpuPlace({1, gpu1, 512})};
    return ready;
  }
  void StartTwo(uint32_t nccl_of_all) {
    Join(4);
    core_.OnCoordinator(StartMessage(1, 2));
    core_.OnBackendPrepared(std::vector<std::string>{"", "a"});
    for (const proto::ExecutorMessage& m : TakeSent()) {
      if (m.has_endpoint()) endpoint_nccl_ = m.endpoint().nccl_version();
    }
    proto::CoordinatorMessage m;
    m.set_epoch(1);
    m.mutable_endpoints()->add_addresses("");
    m.mutable_endpoints()->add_addresses("b");
    m.mutable_endpoints()->set_nccl_version(nccl_of_all);
    core_.OnCoordinator(m);
    core_.OnBackendConnected(absl::OkStatus());
    const auto boards = Take<CreateBoard>();
    ASSERT_EQ(boards.size(), 1u);
    config_ = boards[0].config;
    core_.OnBoardCreated(absl::OkStatus());
    Drop();
  }
  void Announce(uint32_t number, uint32_t first,
                const std::vector<uint32_t>& gpus, uint32_t size = 4) {
    proto::CoordinatorMessage m;
    m.set_epoch(1);
    m.mutable_communicator()->set_number(number);
    m.mutable_communicator()->set_size(size);
    m.mutable_communicator()->set_first(first);
    m.mutable_communicator()->mutable_gpus()->Assign(gpus.begin(), gpus.end());
    core_.OnCoordinator(m);
  }
  std::string AbortText() {
    const auto aborts = Take<AbortBoard>();
    return aborts.size() == 1 ? aborts[0].text : "";
  }

  uint32_t endpoint_nccl_ = 0;
  BoardConfig config_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_TESTING_COMMUNICATORS_TESTING_H_
