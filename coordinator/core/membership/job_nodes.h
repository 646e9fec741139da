// JobNodes: the nodes whose executors have a session of one job, and the way to
// send them what concerns no epoch.
//
//   JobNodes nodes("job", &output);
//   nodes.Add({.session = 7, .node = "n0", .host = "h"});
//   nodes.Refuse(7, {}, absl::StatusCode::kAborted, "the operator ended it");
//   nodes.Warn("rank_lost", " rank=", 3);      // with the job and its epoch
//
// Thread contract: not synchronized; pure.
//
// Invariants: the names of its nodes differ (the caller ensures it).
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_JOB_NODES_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_JOB_NODES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/membership/gathering.h"

namespace maypole::coordinator {

class JobNodes : public JobLog {
 public:
  // `output` must outlive this object.
  JobNodes(std::string job, JobOutput* output)
      : JobLog(std::move(job), 0, output) {}

  // epoch() is the number of the current epoch or the last one, at first 0.
  void SetEpoch(uint64_t epoch) { epoch_ = epoch; }

  // `node`: without ranks.
  void Add(NodeMember node) { nodes_.emplace(node.session, std::move(node)); }
  void Remove(SessionId session);
  const std::map<SessionId, NodeMember>& all() const { return nodes_; }
  const NodeMember& operator[](SessionId session) const {
    return nodes_.at(session);
  }
  std::optional<SessionId> SessionOf(const std::string& node) const;

  // How many EpochStarts, and EpochEnds of no epoch, were sent to it.
  uint64_t Round(SessionId session) const;
  // An EpochStart was sent to it.
  void CountStart(SessionId session) { ++rounds_[session]; }
  // Ends a start: refuses these clients of the node or, if there are none, all
  // ranks that wait there.
  void SendRefusal(SessionId session, const std::vector<uint64_t>& clients,
                   absl::StatusCode code, const std::string& message);
  // The same, with a line in the log.
  void Refuse(SessionId session, const std::vector<uint64_t>& clients,
              absl::StatusCode code, const std::string& message);
  // Tells a node that has sent its state that this epoch does not continue.
  void SendEpochOver(SessionId session, uint64_t epoch, const std::string& why);
  // Then tells such a node that nothing runs.
  void SendRecovered(SessionId session);

 private:
  std::map<SessionId, NodeMember> nodes_;
  std::map<SessionId, uint64_t> rounds_;  // of nodes_; none: 0
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_JOB_NODES_H_
