// Steps: detects that a job issues the same runs again and again.
//
// Purpose: a training step submits the same operations as the one before. After
// a number of equal steps (kEqualSteps at first) the nodes can execute them
// without the coordinator; this class says when, and which runs.
//
//   Steps steps(fusion_threshold);
//   steps.OnRun(operations);                // a run was issued
//   if (steps.repeats()) Announce(steps.Runs(place));
//   ...
//   steps.OnScheduleOver(rounds);           // the nodes have left it
//
// A step ends when exactly the operations of the previous step have come, or
// when an operation comes again. Steps are equal if they have the same
// operations with the same signatures; their order, and how they were cut into
// runs, may differ, because these depend on timing. Operations are scheduled in
// one run if they ran together in one of the equal steps, so that a program
// that waits for one of them before it submits another one keeps its runs; runs
// are scheduled in the order of their last operations in the last step.
// Gathers, alltoalls and what GPUs execute are not scheduled: a step with one
// of them equals no other.
//
// A schedule that is soon left costs more than it saves: the next one then
// needs twice as many equal steps, up to kMostEqualSteps.
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_STEPS_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "coordinator/core/ordering/fusion.h"

namespace maypole::coordinator {

inline constexpr size_t kEqualSteps = 3;
inline constexpr size_t kMostEqualSteps = 768;
// A schedule that was executed for this many rounds was worth it.
inline constexpr uint64_t kWorthwhileRounds = 16;

class Steps {
 public:
  explicit Steps(uint64_t fusion_threshold) : threshold_(fusion_threshold) {}

  void OnRun(const std::vector<const ReadyOperation*>& run);
  // A step has just ended, and as many equal ones as needed.
  bool repeats() const { return step_.empty() && equal_ >= needed_; }
  bool Has(uint32_t id) const { return previous_.contains(id); }
  // The runs of a step. `place` gives an operation's place in its bucket.
  std::vector<std::vector<ReadyOperation>> Runs(
      const std::function<size_t(uint32_t id)>& place) const;
  // Forgets the steps so far.
  void Clear();
  void OnScheduleOver(uint64_t rounds);

 private:
  struct Member {
    ReadyOperation operation;
    size_t run = 0;    // of the step, from 0
    size_t order = 0;  // in the step, from 0
  };
  using Step = std::map<uint32_t, Member>;  // by id

  void Add(const ReadyOperation& operation, size_t run);
  void Close();

  const uint64_t threshold_;
  Step step_;            // the current one
  size_t run_ = 0;       // number of its last run
  size_t matching_ = 0;  // operations of it that are in previous_
  Step previous_;
  size_t equal_ = 0;  // equal steps, previous_ included
  // The runs of the last equal steps, each as ids.
  std::deque<std::vector<std::vector<uint32_t>>> cuts_;
  size_t needed_ = kEqualSteps;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_STEPS_H_
