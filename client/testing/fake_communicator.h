// FakeCommunicator: for tests of what CUDA tensors need from a Communicator. It
// starts no operations, and reports the node's GPUs as the test has set them.
//
// Thread contract: not synchronized; set `use` and `nccl` before other threads
// call it.
#ifndef MAYPOLE_CLIENT_TESTING_FAKE_COMMUNICATOR_H_
#define MAYPOLE_CLIENT_TESTING_FAKE_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "client/session/communicator.h"

namespace maypole {

class FakeCommunicator : public Communicator {
 public:
  Status Start(std::span<const std::shared_ptr<Operation>>) override {
    return Status();
  }
  void InputReady(const std::shared_ptr<Operation>&) override {}
  void InputFailed(const std::shared_ptr<Operation>&, const Status&) override {}
  std::shared_ptr<const ProcessSet> FindSet(uint32_t) const override {
    return nullptr;
  }
  void Progress(const Operation&) override {}
  Status Await(const Operation&, int) override { return Status(); }
  Status StartTimeline(const std::string&, bool) override { return Status(); }
  Status StopTimeline() override { return Status(); }
  void Leave() override {}
  bool homogeneous() const override { return true; }
  GpuUse UseOfGpus() const override { return use; }
  bool executors_have_nccl() const override { return nccl; }

  GpuUse use = GpuUse::kUnknown;
  bool nccl = true;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_TESTING_FAKE_COMMUNICATOR_H_
