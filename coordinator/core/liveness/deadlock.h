// Deadlock: detects, without false alarms, that all ranks wait for each other.
//
// Purpose: an executor reports (Blocked) when all its ranks are blocked: the
// only thread of each waits without a time limit for something that its own
// node cannot decide. When all nodes have reported that, and every rank waits
// for something that a blocked rank has not submitted, the coordinator asks all
// of them to confirm (ConfirmBlocked). If meanwhile no rank has moved and no
// message is in flight, no rank will ever move again.
//
//   Deadlock deadlock(&nodes, &departures, &sets, &table, &joins);
//   deadlock.Take(node, message);             // an error: a bad message
//   std::string text = deadlock.Check(now);   // after any event
//   if (!text.empty()) ...end the epoch
//
// Why it is certain: messages are handled in order. So when an answer arrives,
// its executor has handled ConfirmBlocked and all messages before it, and we
// have handled everything that the executor sent before the answer. If nothing
// else has been sent to a node (handled == sent), none of its ranks will be
// woken, because only other ranks could cause that, and all are blocked. The
// table contains all reports, so a wait that they could end is seen here.
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_COORDINATOR_CORE_LIVENESS_DEADLOCK_H_
#define MAYPOLE_COORDINATOR_CORE_LIVENESS_DEADLOCK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/membership/departures.h"
#include "coordinator/core/membership/epoch_nodes.h"
#include "coordinator/core/membership/process_sets.h"
#include "coordinator/core/ordering/joins.h"
#include "coordinator/core/ordering/presence.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class Deadlock {
 public:
  // The pause between a round that has shown no deadlock and the next round.
  static constexpr Time kRetry = std::chrono::milliseconds(200);

  // All pointers must outlive this object.
  Deadlock(EpochNodes* nodes, const Departures* departures,
           const ProcessSets* sets, const OperationTable* table,
           const Joins* joins);

  absl::Status Take(size_t node, const proto::Blocked& message);
  // Requests another check because something has changed without a message of
  // an executor.
  void Wake();
  // Describes the deadlock; empty: there is none. Asks the nodes to confirm if
  // there may be one.
  std::string Check(Time now);
  std::optional<Time> Deadline() const;

 private:
  // A rank's wait that certainly is for other ranks.
  struct Wait {
    std::string text;               // "allreduce 'x'"
    std::vector<uint32_t> missing;  // ascending; not empty
    bool exact = true;              // false: some of them may have submitted it
  };
  using Counts = std::map<uint32_t, uint64_t>;  // by rank

  absl::Status Check(size_t node, const proto::BlockedRank& rank) const;
  // The nodes that have live ranks, if all of these are blocked; else none.
  std::vector<size_t> BlockedNodes() const;
  Counts CountsOf(const std::vector<size_t>& nodes) const;
  // Describes the deadlock; empty if some rank's wait may end.
  std::string Describe(const std::vector<size_t>& nodes) const;
  std::optional<Wait> WaitOf(size_t node, const proto::BlockedRank& rank) const;
  std::optional<Wait> OperationWait(size_t node,
                                    const proto::BlockedRank& rank) const;
  // Adds the set's ranks on a node where the operation is not present.
  void AddMissing(size_t node, const RankSet& set,
                  const proto::BlockedRank& rank, Wait* wait) const;
  std::string SameNameHint(const std::vector<size_t>& nodes) const;

  EpochNodes& nodes_;
  const Departures& departures_;
  const ProcessSets& sets_;
  const OperationTable& table_;
  const Joins& joins_;
  std::vector<proto::Blocked> said_;  // by node; without ranks: not blocked
  uint64_t round_ = 0;                // the last round
  bool open_ = false;                 // the last round is in progress
  std::vector<bool> answered_;        // by node: in the open round
  Counts counts_;                     // at the beginning of the round
  bool due_ = false;
  Time retry_at_{};
  bool retries_ = false;  // all are blocked, but a round showed no deadlock
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_LIVENESS_DEADLOCK_H_
