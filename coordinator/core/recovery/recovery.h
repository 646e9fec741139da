// Recovery: what a job's executors report to a coordinator that has replaced
// another one.
//
// Purpose: collects the NodeState of every executor of the job, and says when
// enough is known to continue: all executors that have come back have sent
// theirs, they know of an epoch that has not ended, and all of its nodes whose
// ranks have not left it are there (docs/recovery.md). Until then, or until the
// deadline, the job decides nothing: even if no node that is back is in an
// epoch, another node may have been told of a new one.
//
//   Recovery recovery(now + resume_timeout);
//   recovery.Await(now, session, "n0");          // its NodeState follows
//   absl::Status s = recovery.Take(session, message.node_state());
//   if (recovery.Complete()) ...recovery.LastEpoch()...
//
// Thread contract: not synchronized; pure.
//
// Invariants: a node has at most one session here. All states of one epoch
// agree about its members.
#ifndef MAYPOLE_COORDINATOR_CORE_RECOVERY_RECOVERY_H_
#define MAYPOLE_COORDINATOR_CORE_RECOVERY_RECOVERY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/membership/gathering.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

uint64_t NumberOf(const proto::Decision& decision);

// Refuses a NodeState that no correct executor sends.
absl::Status CheckNodeState(const proto::NodeState& state);

class Recovery {
 public:
  explicit Recovery(Time deadline) : deadline_(deadline) {}

  void Await(Time now, SessionId session, const std::string& node);
  // An error means that the executor violates the protocol.
  absl::Status Take(SessionId session, const proto::NodeState& state);
  // The session has ended; `how` completes "the executor of node n1 ".
  void Forget(SessionId session, const std::string& how);

  bool Complete() const;
  // Extended for a node that came back just in time, because its state is still
  // on its way.
  Time deadline() const;
  void Postpone(Time deadline) { deadline_ = deadline; }
  bool Has(SessionId session) const { return reports_.contains(session); }
  std::vector<SessionId> Sessions() const;
  // Its state; null if it has not sent it.
  const proto::NodeState* StateOf(SessionId session) const;

  // The greatest number of a decision that any node has received.
  uint64_t LastDecision() const;

  struct Epoch {
    proto::EpochStart start;
    std::vector<NodeMember> members;  // session 0: it has not come back
    // By member. Null: it has not come back, or has not heard of the epoch.
    std::vector<const proto::NodeState*> states;
    std::set<uint32_t> left;  // ranks
    // Why the epoch is over; empty: it continues.
    std::string over;
  };
  // The job's last epoch, as far as it is known; nullopt: there was none.
  // `waited`: for how long, for the text.
  std::optional<Epoch> LastEpoch(const std::string& waited) const;

 private:
  struct Report {
    std::string node;
    Time awaited_until{};
    std::optional<proto::NodeState> state;
  };

  // The EpochStart of the last epoch; null if there was none.
  const proto::EpochStart* LastStart() const;
  std::set<uint32_t> LeftOf(const proto::EpochStart& start) const;
  // The session of this node; 0 if it has none.
  SessionId SessionOf(const std::string& node) const;

  Time deadline_;
  std::map<SessionId, Report> reports_;
  std::map<std::string, std::string> lost_;  // by node: how
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_RECOVERY_RECOVERY_H_
