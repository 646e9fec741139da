// Coverage: what the programs have tried, and what they must have.
//
// Counts an operation once, not once a rank, when its result (or error) was
// found right. Lies in memory that the ranks share, all zero at first.
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
  // A rank has found the operation's end right. Ranks call it each; the first
  // of those that it concerns counts.
  void Count(const OperationSpec& spec, int rank);
  // Once for the job, by rank 0; or by whoever it is about.
  void Count(Event event) { events_[static_cast<int>(event)] += 1; }
  int64_t events(Event e) const { return events_[static_cast<int>(e)]; }

  // Lines for play.py: "count KIND DTYPE OP N" for all that must be covered,
  // "feature KIND FEATURE N", "event NAME N".
  void Print(std::FILE* to) const;

 private:
  // What is special about an operation.
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
