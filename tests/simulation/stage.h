// Stage: the state that all parts of one simulated run share: random numbers,
// clock, counters, broken promises.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_STAGE_H_
#define MAYPOLE_TESTS_SIMULATION_STAGE_H_

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/simulation/random.h"
#include "tests/simulation/scheduler.h"

namespace maypole::simulation {

// Counters of the events of a run, or of many runs.
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
  uint64_t replaced = 0;   // sessions whose coordinator was replaced
  uint64_t continued = 0;  // epochs that went on with another coordinator
  uint64_t ranks_killed = 0;
  uint64_t ranks_killed_within_a_step = 0;
  uint64_t interruptions = 0;  // of a rank, between two steps of the board's
  uint64_t relayed = 0;
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
  uint64_t results_compared = 0;
  uint64_t results_unchecked = 0;
  uint64_t gpu_operations = 0;
  uint64_t gathered_on_gpus = 0;
  uint64_t rooms_too_small = 0;  // of operations within a node
  uint64_t nccl_runs = 0;        // over several GPUs
  uint64_t runs_of_ranks = 0;    // that call NCCL themselves
  uint64_t gathered_by_ranks = 0;
  uint64_t nccl_failures = 0;    // in a run of ranks that is on the stream
  uint64_t brought_to_host = 0;  // inputs on a GPU
  uint64_t schedules_over = 0;   // by node
  uint64_t scheduled_runs = 0;   // likewise, of those
  uint64_t inputs_sent = 0;      // likewise: operations, before their order
  uint64_t small_runs = 0;       // likewise, whose inputs executors have sent
  // Elastic jobs:
  uint64_t processes_started = 0;
  uint64_t elastic_epochs = 0;
  uint64_t commits = 0;        // by rank
  uint64_t changes = 0;        // commits at which a rank has left the epoch
  uint64_t sigterms = 0;       // by maypolerun
  uint64_t came_too_late = 0;  // after the end of the training
  uint64_t asked_to_leave =
      0;  // ranks that have left at a commit because of it
  uint64_t agents_killed = 0;
  uint64_t hosts_lost = 0;
  uint64_t host_changes = 0;  // by discovery
  uint64_t jobs_ended_badly = 0;
  // An operator's timelines:
  uint64_t timelines_started = 0;
  uint64_t timelines_stopped = 0;
  uint64_t timelines_complete = 0;  // their files
  uint64_t timelines_failed = 0;
};

inline constexpr uint32_t kSimulatedNccl = 22809;  // its version

// Memory of a GPU that a rank shares with its executor.
using GpuMemory = std::shared_ptr<std::vector<std::byte>>;

struct SimulatedCommunicator;      // parts/gpu.h
struct SimulatedRankCommunicator;  // parts/rank_gpu.h

// A deliberate defect in a part of the system, to verify that the checker finds
// it.
enum class Sabotage {
  kNone,
  kDropMessage,  // a message to an executor is lost, but not its number
  kSwapRuns,     // a node places two tickets in another order
  kIgnoreDeath,  // an executor is not notified of a rank's death
  kWrongSum,     // the backend leaves one node's part of a chunk out
  kNoWake,       // a rank's wake-up of the executor is lost
  kNoMismatch,   // executors report the first rank's signature for all ranks
  kSkipRun,      // an executor does not place a run's ticket
  kForgetChunk,  // a chunk never ends on one node
  kLateWrite,    // the backend writes to a chunk's place after its end
  kKeepEpoch,    // an executor does not release an epoch that is over
  kNoDrain,      // an executor does not read its board's eventfd
  kNoWish,       // elastic: ranks are not told that others want to enter
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
      : random(seed), trace_(trace), sabotage_(sabotage) {
    if (random.OneIn(2)) off_gpu = 64;
    if (random.OneIn(2)) ranks_share_gpus = random.OneIn(2) ? 1 : 6;
  }

  Random random;
  Scheduler scheduler;
  Counts counts;
  // On their way to the executor, by the `proof` of the request, in place of a
  // descriptor.
  std::map<uint64_t, GpuMemory> gpu_memories;
  uint64_t last_gpu_memory = 0;
  std::map<std::string, std::shared_ptr<SimulatedRankCommunicator>>
      rank_communicators;
  std::map<std::string, std::shared_ptr<SimulatedCommunicator>> communicators;
  // One in so many ranks, memories and tensors is not on a GPU.
  uint64_t off_gpu = 6;
  // One in so many ranks shares its GPU's memory with the executor; the others
  // call NCCL themselves. 1: all share it.
  uint64_t ranks_share_gpus = 64;
  std::map<std::string, std::string> timelines;  // the texts of the files
  bool checksums = false;  // the ranks want their results compared
  bool repeats = false;    // programs have equal steps
  bool tree = false;  // schedules and relays use a tree, whatever the nodes
  int interrupted = 0;       // ranks that stand at a kill point

  // A rank that has died, or is interrupted at a kill point, may not have woken
  // others yet.
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

  // The owner of events that are never dropped.
  const std::shared_ptr<int>& Forever() const { return forever_; }

  // Records a broken promise.
  template <typename... Args>
  void Found(const Args&... args) {
    found_.push_back(absl::StrFormat(
        "at %.3f ms: %s", static_cast<double>(scheduler.now()) / kMillisecond,
        absl::StrCat(Plain(args)...)));
    Trace("*** ", found_.back());
  }
  const std::vector<std::string>& found() const { return found_; }

  // True about once in `one_in` calls if `what` is the selected sabotage.
  bool Spoils(Sabotage what, uint64_t one_in) {
    if (sabotage_ != what || !random.OneIn(one_in)) return false;
    Trace("(sabotage)");
    return true;
  }

  // The time until a runnable process has its next turn.
  int64_t SoonDelay() {
    return random.OneIn(64)
               ? random.Magnitude(100 * kMicrosecond, 5 * kMillisecond)
               : random.Magnitude(kMicrosecond / 4, 64 * kMicrosecond);
  }
  // The time that a message takes to another node.
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
