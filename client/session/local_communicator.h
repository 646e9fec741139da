// LocalCommunicator: a job of one rank, without daemons. Start() runs each
// operation to its end; an operation whose input is not ready ends in
// InputReady().
//
// Thread contract: as Communicator.
#ifndef MAYPOLE_CLIENT_SESSION_LOCAL_COMMUNICATOR_H_
#define MAYPOLE_CLIENT_SESSION_LOCAL_COMMUNICATOR_H_

#include <memory>
#include <mutex>
#include <vector>

#include "client/session/communicator.h"
#include "client/session/local_timeline.h"

namespace maypole {

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator();
  Status Start(std::span<const std::shared_ptr<Operation>> operations) override;
  void InputReady(const std::shared_ptr<Operation>& operation) override;
  void InputFailed(const std::shared_ptr<Operation>& operation,
                   const Status& error) override;
  std::shared_ptr<const ProcessSet> FindSet(uint32_t id) const override {
    return id == 0 ? set_ : nullptr;
  }
  void Progress(const Operation&) override {}
  // Waits only for inputs that are not written yet.
  Status Await(const Operation& operation, int timeout_ms) override;
  Status StartTimeline(const std::string& path, bool /*mark*/) override {
    return timeline_.Start(path);
  }
  Status StopTimeline() override { return timeline_.Stop(); }
  void Leave() override;
  bool homogeneous() const override { return true; }

 private:
  void End(const std::shared_ptr<Operation>& operation, Status status);
  void Begin(Operation* operation);
  void Done(Operation* operation);

  const std::shared_ptr<const ProcessSet> set_;
  LocalTimeline timeline_;
  uint32_t recorded_ = 0;  // guarded by mutex_
  std::mutex mutex_;
  std::vector<std::shared_ptr<Operation>> pending_;  // without their inputs
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_LOCAL_COMMUNICATOR_H_
