// Deadlock: whether every rank waits for another, for certain.
//
// Purpose: executors say when all their ranks are blocked (Blocked): each in
// its only thread, without a bound, for something that its own node cannot
// decide. When all nodes have said so, and each wait is for something that a
// blocked rank has not submitted, all are asked whether they still are. If
// nothing has moved and nothing is on its way, nothing ever will.
//
//   Deadlock deadlock(&members, &sets, &table, &joins);
//   deadlock.Take(node, message);            // an error: the message is bad
//   Deadlock::Verdict v = deadlock.Look(now, left, sent);   // after any event
//   if (v.confirm != 0) ...send ConfirmBlocked{round = v.confirm} to v.nodes
//   if (!v.text.empty()) ...end the epoch
//
// Why it is certain: an answer comes after its executor has handled
// ConfirmBlocked and all before it, and after all that it has sent (messages
// are handled in order). A node that has since been sent nothing (handled ==
// sent) has nothing to wake its ranks by, for each of them could be woken only
// by another that is blocked. The table holds all reports, so a wait that they
// could end is seen here.
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
#include "coordinator/core/membership/joins.h"
#include "coordinator/core/membership/process_sets.h"
#include "coordinator/core/ordering/presence.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class Deadlock {
 public:
  // Between a round that has shown nothing and the next.
  static constexpr Time kRetry = std::chrono::milliseconds(200);

  struct Verdict {
    uint64_t confirm = 0;       // a round to begin
    std::vector<size_t> nodes;  // to be asked
    std::string text;           // it is a deadlock
  };

  // All pointers outlive this.
  Deadlock(const std::vector<NodeMember>* members, const ProcessSets* sets,
           const OperationTable* table, const Joins* joins);

  absl::Status Take(size_t node, const proto::Blocked& message);
  // Something has changed that no message of an executor tells: look soon.
  void Wake();
  // `left`: ranks that have left; `sent`: messages of the epoch, by node.
  Verdict Look(Time now, const std::vector<uint32_t>& left,
               const std::vector<uint64_t>& sent);
  std::optional<Time> Deadline() const;

 private:
  // A rank's wait, if it is for another rank for certain.
  struct Wait {
    std::string text;               // "allreduce 'x'"
    std::vector<uint32_t> missing;  // ascending; not empty
    bool exact = true;              // else some of them may have submitted it
  };
  using Counts = std::map<uint32_t, uint64_t>;  // by rank

  absl::Status Check(size_t node, const proto::BlockedRank& rank) const;
  bool AllBlocked(const std::vector<uint32_t>& left,
                  std::vector<size_t>* nodes) const;
  Counts CountsOf(const std::vector<size_t>& nodes) const;
  // Empty: some rank's wait may end.
  std::string Describe(const std::vector<size_t>& nodes,
                       const std::vector<uint32_t>& left) const;
  std::optional<Wait> WaitOf(size_t node, const proto::BlockedRank& rank,
                             const std::vector<uint32_t>& left) const;
  std::optional<Wait> OperationWait(size_t node, const proto::BlockedRank& rank,
                                    const std::vector<uint32_t>& left) const;
  // Of the set's ranks on a node where the operation is not present.
  void AddMissing(size_t node, const RankSet& set,
                  const proto::BlockedRank& rank, Wait* wait) const;
  std::string SameNameHint(const std::vector<size_t>& nodes) const;

  const std::vector<NodeMember>& members_;
  const ProcessSets& sets_;
  const OperationTable& table_;
  const Joins& joins_;
  std::vector<proto::Blocked> said_;  // by node; without ranks: not blocked
  uint64_t round_ = 0;                // the last one
  bool open_ = false;                 // it is under way
  std::vector<bool> answered_;        // by node: of the open round
  Counts counts_;                     // at its beginning
  bool due_ = false;
  Time retry_at_{};
  bool retries_ = false;  // all are blocked, and a round has shown nothing
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_LIVENESS_DEADLOCK_H_
