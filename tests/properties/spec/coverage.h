// Coverage: what programs have covered, and what they must cover.
//
// Counts an operation once, not once per rank, when its result (or error) was
// found correct. Lies in memory that the ranks share, initially zero.
//
// Thread contract: any process, any thread.
#ifndef MAYPOLE_TESTS_PROPERTIES_SPEC_COVERAGE_H_
#define MAYPOLE_TESTS_PROPERTIES_SPEC_COVERAGE_H_

#include <atomic>
#include <cstdint>
#include <cstdio>

#include "tests/properties/spec/spec.h"

namespace maypole::properties {

enum class Event {
  kPrograms,
  kOperations,
  kEpochs,
  kSetsMade,
  kSetsRemoved,
  kSetErrors,
  kJoins,
  kGroups,
  kRefusals,  // of calls with wrong arguments
  kEvents,
};

class Coverage {
 public:
  // A rank has found the operation's outcome correct. All ranks call it; only
  // the call of the first rank that the operation concerns counts.
  void Count(const OperationSpec& spec, int rank);
  // Called once per job, by rank 0 or by the rank that the event concerns.
  void Count(Event event) { events_[static_cast<int>(event)] += 1; }
  int64_t events(Event e) const { return events_[static_cast<int>(e)]; }

  // Lines for play.py: "count KIND DTYPE OP N" for all that must be covered,
  // "feature KIND FEATURE N", "event NAME N".
  void Print(std::FILE* to) const;

 private:
  // The special features of an operation.
  enum Feature {
    kUnnamed,
    kGrouped,
    kSetOfOne,
    kSetInNode,
    kSetAcross,
    kWithJoined,
    kNoElements,
    kScalar,
    kArena,
    kMismatch,
    kRootJoined,
    kFeatures,
  };

  std::atomic<int64_t> cells_[kKinds][kDTypes][kOps];
  std::atomic<int64_t> features_[kKinds][kFeatures];
  std::atomic<int64_t> events_[static_cast<int>(Event::kEvents)];
};

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_SPEC_COVERAGE_H_
