// JobStats: what the nodes of an epoch do now, while an operator polls it.
//
// Purpose: a job in the frozen tier sends the coordinator nothing, and a job on
// a single node reports no operation to it. So the executors count, and send
// their counters once a second while an operator polls them.
//
//   if (stats.Watch(now)) ...send kWatch to all nodes...
//   stats.Take(now, node, message);
//   stats.Fill(now, &job_status);          // with status of all nodes in it
//
// Thread contract: not synchronized; pure.
//
// Invariants: a node's figures come from its last two messages; they are
// dropped when the last one is older than kStatsAge.
#ifndef MAYPOLE_COORDINATOR_CORE_ADMIN_JOB_STATS_H_
#define MAYPOLE_COORDINATOR_CORE_ADMIN_JOB_STATS_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "coordinator/core/actions.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// How often a node sends its counters, and for how long after each Watch.
inline constexpr std::chrono::milliseconds kStatsInterval(1000);
inline constexpr std::chrono::milliseconds kWatchTime(15000);
// Watch is sent again after this time if an operator still polls.
inline constexpr std::chrono::milliseconds kWatchAgain(5000);
// Older figures are not shown.
inline constexpr std::chrono::milliseconds kStatsAge(5000);

class JobStats {
 public:
  explicit JobStats(size_t nodes) : nodes_(nodes) {}

  // An operator polls. True if the nodes must be sent Watch (again).
  bool Watch(Time now);
  // INVALID_ARGUMENT: the counters are not of `ranks` ranks.
  absl::Status Take(Time now, size_t node, size_t ranks,
                    const proto::NodeStats& message);
  // The node's figures; waiting and late are by local rank, as in rank_status.
  void Fill(Time now, size_t node, proto::NodeStatus* status) const;
  // The job's figures; also sets `late` of the ranks in the status's `nodes`.
  void Fill(Time now, proto::JobStatus* status) const;

 private:
  struct Node {
    Time at{};  // of `last`
    std::optional<proto::NodeStats> before, last;
  };
  // Null if it has no figures now.
  const Node* Find(Time now, size_t node) const;

  std::vector<Node> nodes_;
  std::optional<Time> told_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ADMIN_JOB_STATS_H_
