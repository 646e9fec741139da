// Stage: what all parts of one simulated run share: the seed's numbers, the
// clock, what is counted, what was found.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_STAGE_H_
#define MAYPOLE_TESTS_SIMULATION_STAGE_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/simulation/random.h"
#include "tests/simulation/scheduler.h"

namespace maypole::simulation {

// What happened in a run, or in many.
struct Counts {
  uint64_t seeds = 0;
  uint64_t steps = 0;
  uint64_t epochs = 0;
  uint64_t submitted = 0;  // operations, by rank
  uint64_t ended_well = 0;
  uint64_t ended_badly = 0;
  uint64_t mismatches = 0;
  uint64_t refused_starts = 0;
  uint64_t reconnects = 0;
  uint64_t ranks_killed = 0;
  uint64_t ranks_killed_within_a_step = 0;
  uint64_t interruptions = 0;  // of a rank, between two steps of the board's
  uint64_t ranks_frozen = 0;
  uint64_t early_leavers = 0;
  uint64_t executors_killed = 0;
  uint64_t coordinators_killed = 0;
  uint64_t links_cut = 0;
  uint64_t backends_failed = 0;
  uint64_t late_reports = 0;
  uint64_t deadlocks = 0;
  uint64_t frozen_expelled = 0;
  uint64_t slots_freed = 0;
};

// A part of the system that is made wrong on purpose, to see the checker find
// it.
enum class Sabotage {
  kNone,
  kDropMessage,  // a message to an executor is lost, its number is not
  kSwapRuns,     // a node places two tickets in another order
  kIgnoreDeath,  // an executor does not hear that a rank has died
  kWrongSum,     // the backend leaves one node's part of a chunk out
  kNoWake,       // a rank's wake-up of the executor is lost
  kNoMismatch,   // executors say that all ranks submit what the first does
  kSkipRun,      // an executor does not place a run's ticket
  kForgetChunk,  // a chunk never ends on one node
  kLateWrite,    // the backend writes to a chunk's place after its end
  kKeepEpoch,    // an executor does not let go of an epoch that is over
  kNoDrain,      // an executor does not read its board's eventfd
};

// What StrCat takes: absl's string_view need not be std's.
inline std::string Plain(std::string_view s) { return std::string(s); }
template <typename T>
const T& Plain(const T& value) {
  return value;
}

class Stage {
 public:
  Stage(uint64_t seed, bool trace, Sabotage sabotage)
      : random(seed), trace_(trace), sabotage_(sabotage) {}

  Random random;
  Scheduler scheduler;
  Counts counts;
  int interrupted = 0;  // ranks that stand at a kill point

  // Who has died, or stands at a kill point, may owe others a wake-up.
  bool SomebodyOwesAWake() const {
    return counts.ranks_killed > 0 || interrupted > 0;
  }

  bool tracing() const { return trace_; }
  template <typename... Args>
  void Trace(const Args&... args) {
    if (!trace_) return;
    absl::FPrintF(stdout, "%12.3f ms  %s\n",
                  static_cast<double>(scheduler.now()) / kMillisecond,
                  absl::StrCat(Plain(args)...));
    std::fflush(stdout);
  }

  // The owner of what happens in any case.
  const std::shared_ptr<int>& Forever() const { return forever_; }

  // The checker has found something.
  template <typename... Args>
  void Found(const Args&... args) {
    found_.push_back(absl::StrFormat(
        "at %.3f ms: %s", static_cast<double>(scheduler.now()) / kMillisecond,
        absl::StrCat(Plain(args)...)));
    Trace("*** ", found_.back());
  }
  const std::vector<std::string>& found() const { return found_; }

  // True now and then, if this is what is made wrong.
  bool Spoils(Sabotage what, uint64_t one_in) {
    if (sabotage_ != what || !random.OneIn(one_in)) return false;
    Trace("(sabotage)");
    return true;
  }

  // How long until a process that may run has its next turn.
  int64_t SoonDelay() {
    return random.OneIn(64)
               ? random.Magnitude(100 * kMicrosecond, 5 * kMillisecond)
               : random.Magnitude(kMicrosecond / 4, 64 * kMicrosecond);
  }
  // A message's way to another node.
  int64_t MessageDelay() {
    return random.OneIn(32) ? random.Magnitude(kMillisecond, 64 * kMillisecond)
                            : random.Magnitude(20 * kMicrosecond, kMillisecond);
  }

 private:
  const bool trace_;
  const Sabotage sabotage_;
  std::vector<std::string> found_;
  const std::shared_ptr<int> forever_ = std::make_shared<int>();
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_STAGE_H_
