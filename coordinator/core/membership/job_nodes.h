// JobNodes: the nodes whose executors have a session of one job, and the way to
// send them what concerns no epoch.
//
//   JobNodes nodes("job", kProtocolVersions, &output);
//   nodes.Add(7, {.node = "n0", .host = "h"});
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
#include "absl/strings/str_cat.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/membership/gathering.h"

namespace maypole::coordinator {

class JobNodes {
 public:
  struct Node {
    std::string node;
    std::string host;
    std::string address;         // where the coordinator sees it; may be empty
    VersionRange versions = {};  // that its executor speaks
    // How many EpochStarts, and EpochEnds of no epoch, were sent to it.
    uint64_t round = 0;
  };

  // `versions`: the coordinator's. `output` must outlive this object.
  JobNodes(std::string job, VersionRange versions, JobOutput* output);
  JobNodes(const JobNodes&) = delete;
  JobNodes& operator=(const JobNodes&) = delete;

  const std::string& job() const { return job_; }
  // The number of the current epoch or the last one; 0: there was none.
  uint64_t epoch() const { return epoch_; }
  void SetEpoch(uint64_t epoch) { epoch_ = epoch; }

  void Add(SessionId session, Node node);
  void Remove(SessionId session) { nodes_.erase(session); }
  const std::map<SessionId, Node>& all() const { return nodes_; }
  const Node& operator[](SessionId session) const { return nodes_.at(session); }
  bool Has(SessionId session) const { return nodes_.contains(session); }
  std::optional<SessionId> SessionOf(const std::string& node) const;
  // The node without ranks.
  NodeMember MemberOf(SessionId session) const;

  // An EpochStart was sent to it.
  void CountStart(SessionId session) { ++nodes_.at(session).round; }
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

  template <typename... Fields>
  void Info(absl::string_view event, const Fields&... fields) {
    out.Info(LogPrefix(event), fields...);
  }
  template <typename... Fields>
  void Warn(absl::string_view event, const Fields&... fields) {
    out.Warn(LogPrefix(event), fields...);
  }
  JobOutput& out;

 private:
  std::string LogPrefix(absl::string_view event) const;

  const std::string job_;
  const VersionRange versions_;
  uint64_t epoch_ = 0;
  std::map<SessionId, Node> nodes_;
};

// "the executor of node n1 (host h) with ranks 2,3"
std::string ExecutorText(const JobNodes::Node& node,
                         const std::vector<uint32_t>& ranks);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_JOB_NODES_H_
