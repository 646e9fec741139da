// Schedule: the runs of a step, which the nodes of a job repeat without the
// coordinator (the frozen tier, docs/schedule.md).
//
// Purpose: agrees with the other nodes, run by run, whether a scheduled run is
// executed. A run's number in all rounds of the schedule is its position. As
// soon as all operations of its next run are present on it, a node tells the
// nodes of the run that it is ready, and goes on to its next run. A run is
// executed when all its nodes are ready for it.
//
// A node whose ranks do something else refuses: it tells all nodes the position
// of its next run, and is never ready for that run or a later one. A node that
// learns of a refusal refuses as well. So each run is executed by all its nodes
// or by none, without another exchange: messages from one node to another
// arrive in order, and "ready for p" and "refused from p or earlier" exclude
// each other. The schedule has ended here when all nodes have refused and every
// run for which this node was ready is executed or dropped. The remaining
// operations are reported to the coordinator.
//
// On many nodes, messages between all pairs would be too many. There the nodes
// form a tree, and every run has all nodes. A node tells its parent when it and
// all nodes below it are ready, or have refused; the root tells all nodes, down
// the tree, when all are ready, or have refused. A node's own refusal (Leaving)
// spreads through the tree at once, so that all nodes refuse.
//
//   Schedule schedule(self, nodes);
//   schedule.Begin(number, length, fan_out, runs, now_ms);
//   schedule.Add(slot, urgent, copied);       // present here
//   schedule.OnPeer(node, message);
//   for (const auto& m : schedule.TakeMessages()) ...   // to other nodes
//   for (const auto& run : schedule.TakeRuns()) ...     // to execute, in order
//   if (schedule.over()) schedule.End();
//
// Small runs need no data stage: if a node's ranks have copied their inputs,
// the node's ready message carries them. When all nodes of the run have sent
// their inputs, each node can compute the result. All nodes see the same
// messages, so they also agree whether a run needs a data stage.
//
// A node refuses when one of its ranks has waited for kScheduleLateMs. Then the
// coordinator learns again what is present where, and can name stragglers and
// deadlocks.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Invariants: the positions for which this node reports itself ready ascend.
// Runs are executed in the order of their positions.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_SCHEDULE_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_SCHEDULE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/coordinator.pb.h"

namespace maypole::worker {

struct ScheduledRun {
  uint32_t index = 0;           // among the schedule's runs on all nodes
  std::vector<uint32_t> slots;  // in the run's order; not empty
  std::vector<uint32_t> nodes;  // of its process set, ascending
  // Its inputs may travel with a node's ready message.
  bool small = false;
};

class Schedule {
 public:
  Schedule(uint32_t self, uint32_t nodes);

  // `length`: runs of a round, on all nodes. `fan_out`: children of a node in
  // the tree; 0: no tree. `runs`: those of this node, by ascending index; no
  // slot is in two of them; with a tree, none is small.
  void Begin(uint64_t number, uint32_t length, uint32_t fan_out,
             std::vector<ScheduledRun> runs, int64_t now_ms);
  // From Begin() to End().
  bool active() const { return active_; }
  uint64_t number() const { return number_; }
  uint32_t length() const { return length_; }
  uint32_t fan_out() const { return fan_out_; }
  bool Has(uint32_t slot) const { return run_of_.contains(slot); }

  // The operation is present here, with the scheduled signature. `copied`: the
  // executor can read its inputs.
  void Add(uint32_t slot, bool urgent, bool copied);
  // A rank waits for an operation that was added.
  void Urge(uint32_t slot);
  // Takes part in no further run. Of several reasons, the first counts.
  void Refuse(proto::ScheduleEnd why, const std::string& text);
  void OnPeer(uint32_t node, const proto::PeerMessage& message);
  // Sets the time of the calls that follow. Returns the slot of an operation
  // for which a rank has waited too long, if there is one; then the owner must
  // call Refuse().
  std::optional<uint32_t> OnTime(int64_t now_ms);
  // Call OnTime() within this many milliseconds; -1: no need.
  int64_t WaitMs() const;

  struct Message {
    std::vector<uint32_t> nodes;  // without this one
    proto::PeerMessage message;
    // The owner adds the inputs of these slots; none if it is empty.
    std::vector<uint32_t> inputs_of = {};
  };
  std::vector<Message> TakeMessages() { return std::exchange(messages_, {}); }
  // A run to execute now.
  struct Execution {
    std::vector<uint32_t> slots;
    // For a small run whose nodes have all sent their inputs: these inputs, by
    // node of the run, so that no data stage is needed. inputs[self] is empty.
    std::vector<std::string> inputs = {};
    size_t self = 0;
  };
  // In order.
  std::vector<Execution> TakeRuns();
  bool over() const;
  // Ends the schedule; call it when over(). Returns the slots that were added
  // and not executed.
  std::set<uint32_t> End();

  // Of this schedule: the number of runs executed here, and why it has ended,
  // as far as this node knows.
  uint64_t executed() const { return executed_; }
  proto::ScheduleEnd why() const { return why_; }
  const std::string& text() const { return text_; }

 private:
  using Position = uint64_t;
  // What a node has reported about the schedule with this number.
  struct Peer {
    uint64_t number = 0;
    std::optional<Position> ready;           // the last one
    std::map<Position, std::string> inputs;  // of undecided runs
    std::optional<proto::Refusal> refusal;
    std::optional<proto::Leaving> leaving;
  };
  // A run for which this node is ready.
  struct Waiting {
    uint64_t turn = 0;
    bool sent_inputs = false;
  };
  enum class Fate { kUndecided, kExecuted, kDropped };

  const ScheduledRun& RunOf(uint64_t turn) const {
    return runs_[turn % runs_.size()];
  }
  Position PositionOf(uint64_t turn) const;
  // The first position for which this node is not ready.
  Position NextPosition() const;
  // What the node has reported about the current schedule; null: nothing.
  const Peer* SaidBy(uint32_t node) const;
  // The nodes whose messages decide about a run: all its other nodes; in a
  // tree, the parent, or, at the root, the children.
  const std::vector<uint32_t>& DecidersOf(const ScheduledRun& run) const {
    return fan_out_ == 0 ? run.nodes : above_;
  }
  // Reports this node ready for its next runs, as far as they are present.
  void GoOn();
  // In a tree: reports what holds for this node and all nodes below it.
  void TellAbove();
  Fate FateOf(uint64_t turn) const;
  // Takes the inputs that other nodes have sent for this turn.
  Execution TakeInputs(const Waiting& run);
  proto::PeerMessage RefusalFrom(Position from) const;
  void FindNeighbours();
  // Refuses if the peer has refused, or has passed on a refusal.
  void FollowRefusal(const Peer& peer);
  void Tell(const std::vector<uint32_t>& nodes, proto::PeerMessage message,
            std::vector<uint32_t> inputs_of = {});
  void Executed(const std::vector<uint32_t>& slots);

  const uint32_t self_;
  bool active_ = false;
  uint64_t number_ = 0;
  uint32_t length_ = 0;
  uint32_t fan_out_ = 0;
  std::vector<uint32_t> children_;  // in the tree
  std::vector<uint32_t> above_;     // the parent; at the root: children_
  std::vector<uint32_t> everyone_;  // all nodes
  Position told_ready_ = 0;         // by TellAbove(): for all positions below
  bool told_refusal_ = false;       // likewise
  std::vector<ScheduledRun> runs_;
  std::map<uint32_t, uint32_t> run_of_;  // slot -> index in runs_
  std::vector<Peer> peers_;              // by node; the own one is unused
  // A turn counts this node's runs through all rounds.
  uint64_t next_turn_ = 0;       // the first for which this node is not ready
  std::deque<Waiting> waiting_;  // ready here, undecided
  // By index in runs_: slots added, and how many of them are copied.
  std::vector<size_t> present_;
  std::vector<size_t> copied_;
  std::set<uint32_t> added_;   // slots that were not executed
  std::set<uint32_t> urgent_;  // of added_
  int64_t now_ms_ = 0;
  int64_t late_ms_ = 0;  // with urgent_: when this node refuses
  bool refused_ = false;
  uint64_t executed_ = 0;
  proto::ScheduleEnd why_ = proto::SCHEDULE_LATE;
  std::string text_;
  std::vector<Message> messages_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_SCHEDULE_H_
