// Stragglers: which ranks others wait for, which operations they hold up, and
// for how long.
//
// Purpose: a live rank that is late is reported, not failed. Executors report
// operations that only some of their ranks have submitted for longer than the
// check time (LateOperations). The table knows the operations that are present
// on some nodes only, and the process sets know the incomplete requests. From
// all of these, this class finds the late ranks and the operations that they
// hold up, and describes them in one message.
//
//   Stragglers late(&nodes, &departures, &sets, &table, &joins, check, limit);
//   late.Take(now, node, message);            // an error: a bad message
//   late.Watch(now);                          // after any event
//   if (late.Deadline() <= now) ...late.Check(now)...
//
//   report    made
//   first     kSettle after an operation has become late
//   new       kSettle after a rank that is not in the last report became late
//   repeated  after 1, 2, 4, .. times the check time
//   over      when nothing is late any more
//
// A mutual wait: each rank that has neither left nor joined waits for another
// one and is waited for itself. If that lasts kMutualLimit, none of them will
// ever go on: they call operations in different orders. That is not certain as
// Deadlock's verdict is (a thread of each rank may be busy), but it also finds
// ranks whose framework waits for them, as TensorFlow and JAX do.
//
// Ranks that have left are never late. A rank that stands aside submits what
// the others need: it is late only if it has been able to for longer than the
// check time. It is unable to while no rank of its node has submitted the
// operation and some rank of its node does not stand aside.
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_COORDINATOR_CORE_LIVENESS_STRAGGLERS_H_
#define MAYPOLE_COORDINATOR_CORE_LIVENESS_STRAGGLERS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
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

class Stragglers {
 public:
  // Messages that different nodes send within this time make one report.
  static constexpr Time kSettle = std::chrono::milliseconds(200);
  // How often to check whether reported ranks are still late.
  static constexpr Time kLookAgain = std::chrono::seconds(1);
  static constexpr Time kMutualLimit = std::chrono::minutes(10);

  struct Report {
    std::string late;             // the message; empty: no report now
    std::vector<uint32_t> ranks;  // the late ranks, ascending
    // Ranks that wait for those and are not late themselves, ascending.
    std::vector<uint32_t> waiting;
    Time waited{};          // the longest wait
    bool over = false;      // nothing is late any more
    bool shutdown = false;  // the shutdown time has passed
    bool mutual = false;    // a mutual wait has lasted kMutualLimit
  };

  // All pointers must outlive this object. check 0: nothing is ever late;
  // shutdown 0: Report::shutdown is never set, otherwise Report::mutual is not.
  Stragglers(const EpochNodes* nodes, const Departures* departures,
             const ProcessSets* sets, const OperationTable* table,
             const Joins* joins, Time check, Time shutdown);

  absl::Status Take(Time now, size_t node,
                    const proto::LateOperations& message);
  // The rank stands aside from now on.
  void OnAside(Time now, uint32_t rank) { aside_since_[rank] = now; }
  void Watch(Time now);
  std::optional<Time> Deadline() const;
  Report Check(Time now);

  // As of the last Check().
  size_t ranks() const { return late_for_.size(); }
  size_t operations() const { return late_operations_; }
  // By rank: the operations that it holds up, the oldest first, at most
  // kMaxStatusLateFor.
  const std::map<uint32_t, std::vector<std::string>>& late_for() const {
    return late_for_;
  }

 private:
  // One operation of a node's LateOperations.
  struct Said {
    proto::LateOperation op;
    Time since{};
  };
  struct Late {
    std::string text;  // "allreduce 'x'"
    Time since{};
    std::set<uint32_t> arrived;
    std::set<uint32_t> missing;
    std::set<uint32_t> aside;  // of missing
    // Only of an operation, not of a request for a process set:
    const RankSet* set = nullptr;
    const NegotiatedOperation* op = nullptr;  // null: the table has none
    std::set<size_t> said_by;  // nodes that have reported it as late
  };
  // By process set, kind, name and generation.
  using Key = std::tuple<uint32_t, uint32_t, std::string, uint32_t>;
  using LateByKey = std::map<Key, Late>;

  absl::Status Check(size_t node, const proto::LateOperation& op) const;
  bool NeedsLook() const;
  // The late operations, the oldest first. Sets next_ to the time when another
  // operation may become late.
  std::vector<Late> Collect(Time now);
  void CollectSaid(LateByKey* late) const;
  void CollectPending(Time now, LateByKey* late);
  static Key KeyOf(const proto::Identity& identity, uint32_t generation);
  // Finds or adds the operation, which has been late since then or before.
  Late& Add(const proto::Identity& identity, uint32_t generation, Time since,
            LateByKey* late) const;
  // Removes from `missing` the ranks that stand aside, except those that should
  // have submitted the operation by now.
  void JudgeAside(Time now, Late* late);
  // True if the operation has been answered, or will fail because a rank of its
  // set has left.
  bool Stale(size_t node, const proto::LateOperation& said) const;
  void NoteLate(const std::vector<Late>& late);
  // Since when all ranks have been in a mutual wait; nothing: they are not.
  std::optional<Time> MutualSince(const std::vector<Late>& late) const;
  std::string Sentence(Time now, const std::vector<Late>& late) const;
  std::string GroupText(Time now, const std::vector<uint32_t>& ranks,
                        bool aside, const std::vector<const Late*>& late) const;
  std::string RankText(uint32_t rank) const;

  const EpochNodes& nodes_;
  const Departures& departures_;
  const ProcessSets& sets_;
  const OperationTable& table_;
  const Joins& joins_;
  const Time check_;
  const Time shutdown_;
  std::vector<std::vector<Said>> said_;   // by node
  std::vector<uint32_t> more_;            // by node: operations not in said_
  std::set<uint32_t> stopped_;            // ranks reported as stopped
  std::map<uint32_t, Time> aside_since_;  // valid for ranks that stand aside
  std::optional<Time> look_at_;
  std::optional<Time> next_;
  bool reported_ = false;
  std::set<uint32_t> reported_ranks_;
  std::optional<Time> report_at_;  // when to make a new report
  Time repeat_at_{};               // when to repeat it, if reported_
  Time interval_{};
  Time longest_{};  // the longest wait since the first report
  std::map<uint32_t, std::vector<std::string>> late_for_;
  size_t late_operations_ = 0;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_LIVENESS_STRAGGLERS_H_
