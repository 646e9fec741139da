// Stragglers: who keeps others waiting, and for how long.
//
// Purpose: a live rank that is late is reported, not failed. Executors say
// which operations some of their ranks have submitted and others not for longer
// than the check time (LateOperations); the table says which are present on
// some nodes only, the process sets which requests are not complete. Both
// together give ranks and the operations they hold up, and one sentence about
// them.
//
//   Stragglers late(&members, &sets, &table, &joins, check, shutdown);
//   late.Take(now, node, message);     // an error: the message is bad
//   late.Watch(now);                   // after any event
//   if (late.Deadline() <= now) Stragglers::Report r = late.Look(now, left);
//
//   a report is made         when
//   first                    kSettle after an operation has become late
//   new                      kSettle after a rank has that was not in the last
//   again                    after 1, 2, 4, .. times the check time
//   over                     nothing is late any more
//
// Ranks that have left are late for nothing. One that stands aside submits what
// the others need: it is late only if it could for longer than the check time
// and has not. It cannot while no rank of its node has submitted the operation
// and a rank of its node does not stand aside.
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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/membership/joins.h"
#include "coordinator/core/membership/process_sets.h"
#include "coordinator/core/ordering/presence.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class Stragglers {
 public:
  // What different nodes say at about the same time makes one report.
  static constexpr Time kSettle = std::chrono::milliseconds(200);
  // How often it looks whether it is over.
  static constexpr Time kLookAgain = std::chrono::seconds(1);

  struct Report {
    std::string late;             // a sentence; empty: no report now
    std::vector<uint32_t> ranks;  // of the sentence, ascending
    // Those that wait for them and are not late themselves, ascending.
    std::vector<uint32_t> waiting;
    Time waited{};          // the longest wait
    bool over = false;      // what was reported is over
    bool shutdown = false;  // the shutdown time has passed
  };

  // All pointers outlive this. check 0: nothing is ever late; shutdown 0:
  // never.
  Stragglers(const std::vector<NodeMember>* members, const ProcessSets* sets,
             const OperationTable* table, const Joins* joins, Time check,
             Time shutdown);

  absl::Status Take(Time now, size_t node,
                    const proto::LateOperations& message);
  // The rank stands aside from now on.
  void OnAside(Time now, uint32_t rank) { aside_since_[rank] = now; }
  void Watch(Time now);
  std::optional<Time> Deadline() const;
  // `left`: ranks that have left.
  Report Look(Time now, const std::vector<uint32_t>& left);

  // As of the last look.
  size_t ranks() const { return late_for_.size(); }
  size_t operations() const { return late_operations_; }
  // By rank: operations that it holds up, the oldest first, at most
  // kMaxStatusLateFor.
  const std::map<uint32_t, std::vector<std::string>>& late_for() const {
    return late_for_;
  }

 private:
  // What a node has said.
  struct Said {
    proto::Identity identity;
    uint32_t generation = 0;
    Time since{};
    std::vector<uint32_t> arrived;
    std::vector<uint32_t> missing;
    std::vector<uint32_t> stopped;
  };
  struct Late {
    std::string text;  // "allreduce 'x'"
    Time since{};
    std::set<uint32_t> arrived;
    std::set<uint32_t> missing;
    std::set<uint32_t> aside;  // of missing
  };
  // By process set, kind, name and generation.
  using Key = std::tuple<uint32_t, uint32_t, std::string, uint32_t>;

  absl::Status Check(size_t node, const proto::LateOperation& op) const;
  bool NeedsLook() const;
  // Oldest first. Sets next_ to when something else may become late.
  std::vector<Late> Collect(Time now, const std::vector<uint32_t>& left);
  void CollectSaid(const std::vector<uint32_t>& left, std::map<Key, Late>* late,
                   std::map<Key, std::set<size_t>>* said_by) const;
  void CollectPending(Time now, std::map<Key, Late>* late,
                      const std::map<Key, std::set<size_t>>& said_by);
  // Of those that stand aside only who should have submitted it by now stays
  // missing. `said_by`: nodes that have named their ranks themselves.
  void JudgeAside(Time now, const Key& key, const std::set<size_t>& said_by,
                  Late* late);
  // It has been answered, or will fail: a rank of its set has left.
  bool Stale(size_t node, const Said& said,
             const std::vector<uint32_t>& left) const;
  void NoteLate(const std::vector<Late>& late);
  std::string Sentence(Time now, const std::vector<Late>& late) const;
  std::string GroupText(Time now, const std::vector<uint32_t>& ranks,
                        bool aside, const std::vector<const Late*>& late) const;
  std::string RankText(uint32_t rank) const;

  const std::vector<NodeMember>& members_;
  const ProcessSets& sets_;
  const OperationTable& table_;
  const Joins& joins_;
  const Time check_;
  const Time shutdown_;
  std::vector<std::vector<Said>> said_;   // by node
  std::vector<uint32_t> more_;            // by node: left out of said_
  std::set<uint32_t> stopped_;            // as said
  std::map<uint32_t, Time> aside_since_;  // counts while joins_ says so
  std::optional<Time> look_at_;
  std::optional<Time> next_;
  bool reported_ = false;
  std::set<uint32_t> reported_ranks_;
  std::optional<Time> report_at_;  // a new report
  Time repeat_at_{};               // if reported_
  Time interval_{};
  Time longest_{};  // wait since the first report
  std::map<uint32_t, std::vector<std::string>> late_for_;
  size_t late_operations_ = 0;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_LIVENESS_STRAGGLERS_H_
