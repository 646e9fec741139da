// JobRecovery: takes over a job whose executors had another coordinator before
// this one (docs/recovery.md).
//
// Purpose: waits for the states of the job's nodes (recovery.h). When they are
// complete, or at the deadline, it continues the last epoch if it can;
// otherwise it tells the nodes that nothing runs. A node that comes back later
// is told that its epoch is over.
//
// Thread contract: not synchronized; pure.
//
// Invariant: a job recovers at most once, and not after it has had an epoch
// here.
#ifndef MAYPOLE_COORDINATOR_CORE_JOB_RECOVERY_H_
#define MAYPOLE_COORDINATOR_CORE_JOB_RECOVERY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/coordinator_epoch.h"
#include "coordinator/core/membership/job_nodes.h"
#include "coordinator/core/recovery/recovery.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class JobRecovery {
 public:
  // `nodes` must outlive this object.
  JobRecovery(const Config& config, JobNodes* nodes)
      : config_(config), nodes_(*nodes) {}
  JobRecovery(const JobRecovery&) = delete;
  JobRecovery& operator=(const JobRecovery&) = delete;

  // The executor had a session with an earlier coordinator, and will send its
  // NodeState.
  void Await(Time now, SessionId session, const std::string& node);
  // An error means that the executor violates the protocol.
  absl::Status Take(SessionId session, const proto::NodeState& state);
  // The session has ended; `how` completes "the executor of node n1 ".
  void Forget(SessionId session, const std::string& how) {
    recovery_->Forget(session, how);
  }
  void Postpone(Time deadline) {
    if (recovery_) recovery_->Postpone(deadline);
  }

  bool active() const { return recovery_.has_value(); }
  bool Has(SessionId session) const {
    return recovery_ && recovery_->Has(session);
  }
  bool Complete() const { return recovery_ && recovery_->Complete(); }
  std::optional<Time> Deadline() const {
    return recovery_ ? std::optional(recovery_->deadline()) : std::nullopt;
  }
  // The greatest epoch number of nodes that came back too late.
  uint64_t last_epoch_said() const { return last_epoch_said_; }

  struct Result {
    // The last epoch's start and members; nullopt: there was none.
    std::optional<Recovery::Epoch> last;
    // The epoch, if it continues.
    std::unique_ptr<CoordinatorEpoch> epoch;
  };
  // Ends the recovery, and tells the nodes what continues. Raises *decisions to
  // the number of the job's last decision.
  Result Finish(uint64_t* decisions);

 private:
  std::unique_ptr<CoordinatorEpoch> Continue(const Recovery::Epoch& last,
                                             uint64_t decisions,
                                             std::vector<SessionId>* told);
  void SendTooLate(SessionId session, const proto::NodeState& state);

  const Config config_;
  JobNodes& nodes_;
  std::optional<Recovery> recovery_;
  bool finished_ = false;
  uint64_t last_epoch_said_ = 0;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_JOB_RECOVERY_H_
