// FixedStart: the next start of a job whose ranks are fixed, from the first
// rank that waits to a complete gathering or to a failure.
//
// Purpose: when a start fails, tells all nodes that wait, and nodes that become
// ready later (they belonged to that start), until a node that was told becomes
// ready again: that begins a new start.
//
//   FixedStart start(&nodes, std::chrono::seconds(120));
//   start.SetReady(now, member, 4);
//   if (start.gathering().Complete()) ... start.Take() ...
//
// Elastic jobs have Elastic instead (elastic.h).
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_FIXED_START_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_FIXED_START_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/membership/gathering.h"
#include "coordinator/core/membership/job_nodes.h"

namespace maypole::coordinator {

class FixedStart {
 public:
  // `nodes` must outlive this object. `timeout`: for ranks that set none.
  FixedStart(JobNodes* nodes, Time timeout)
      : nodes_(*nodes), timeout_(timeout) {}
  FixedStart(const FixedStart&) = delete;
  FixedStart& operator=(const FixedStart&) = delete;

  const Gathering& gathering() const { return gathering_; }

  // All ranks of the node are there. `size`: the job's, as they report it.
  // Fails the start if they do not fit the others.
  void SetReady(Time now, NodeMember member, uint32_t size);
  // Some ranks of the node are there.
  void SetWaiting(Time now, NodeMember member, uint32_t size);
  // No rank of the node waits any more.
  void Remove(SessionId session);
  // The session has ended; `how` completes "the executor of node n1 ".
  void Lose(SessionId session, const std::string& how);

  // Fails the start and tells all nodes that wait, except the reporter (0:
  // none), which knows: it may be ready for another start before the message
  // could reach it.
  void Fail(const std::string& message, SessionId reporter,
            absl::StatusCode code = absl::StatusCode::kAborted);
  // Fails the start if a node waits, even if only for local ranks.
  void Stop(const std::string& message);
  // Nodes that become ready later are not told of the last failure.
  void ForgetFailure() { failure_.reset(); }

  // When the start times out.
  std::optional<Time> Deadline() const;
  // `running`: the text about an epoch that still runs; empty if none does.
  void TimeOut(const std::string& running);

  // Removes and returns the members of a complete gathering.
  std::vector<NodeMember> Take();

 private:
  struct Failure {
    absl::StatusCode code = absl::StatusCode::kAborted;
    std::string message;
    std::set<SessionId> told;
  };

  JobNodes& nodes_;
  const Time timeout_;
  Gathering gathering_;
  std::optional<Time> since_;  // when the first rank began to wait
  std::optional<Failure> failure_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_FIXED_START_H_
