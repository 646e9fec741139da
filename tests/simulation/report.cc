#include "tests/simulation/report.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace maypole::simulation {
namespace {

struct Counter {
  const char* name;
  uint64_t Counts::*value;
};

constexpr Counter kCounters[] = {
    {"seeds", &Counts::seeds},
    {"steps", &Counts::steps},
    {"boards of epochs", &Counts::epochs},
    {"operations submitted", &Counts::submitted},
    {"  ended well", &Counts::ended_well},
    {"  ended with an error", &Counts::ended_badly},
    {"    of them mismatches", &Counts::mismatches},
    {"starts refused", &Counts::refused_starts},
    {"streams resumed", &Counts::reconnects},
    {"coordinators replaced", &Counts::replaced},
    {"epochs continued by another coordinator", &Counts::continued},
    {"ranks killed", &Counts::ranks_killed},
    {"  within a step", &Counts::ranks_killed_within_a_step},
    {"ranks interrupted in a step", &Counts::interruptions},
    {"messages passed on", &Counts::relayed},
    {"ranks stopped for a while", &Counts::ranks_frozen},
    {"ranks that left early", &Counts::early_leavers},
    {"executors killed", &Counts::executors_killed},
    {"coordinators killed", &Counts::coordinators_killed},
    {"links cut", &Counts::links_cut},
    {"backends failed", &Counts::backends_failed},
    {"reports of late ranks", &Counts::late_reports},
    {"deadlocks told", &Counts::deadlocks},
    {"stopped ranks given up", &Counts::frozen_expelled},
    {"slots taken back", &Counts::slots_freed},
    {"results compared", &Counts::results_compared},
    {"results not compared", &Counts::results_unchecked},
    {"operations on GPUs", &Counts::gpu_operations},
    {"operations gathered there", &Counts::gathered_on_gpus},
    {"operations without room there", &Counts::rooms_too_small},
    {"runs over several GPUs", &Counts::nccl_runs},
    {"runs of ranks that call NCCL", &Counts::runs_of_ranks},
    {"operations gathered by them", &Counts::gathered_by_ranks},
    {"failures of their NCCL", &Counts::nccl_failures},
    {"inputs brought from a GPU", &Counts::brought_to_host},
    {"schedules left, by nodes", &Counts::schedules_over},
    {"  runs executed by them", &Counts::scheduled_runs},
    {"inputs sent ahead, by nodes", &Counts::inputs_sent},
    {"small runs, by nodes", &Counts::small_runs},
    {"elastic: processes started", &Counts::processes_started},
    {"elastic: epochs", &Counts::elastic_epochs},
    {"elastic: commits of ranks", &Counts::commits},
    {"elastic:   that changed the job", &Counts::changes},
    {"elastic: SIGTERMs", &Counts::sigterms},
    {"elastic: processes that came too late", &Counts::came_too_late},
    {"elastic: ranks that left then", &Counts::asked_to_leave},
    {"agents killed", &Counts::agents_killed},
    {"elastic: hosts lost", &Counts::hosts_lost},
    {"elastic: changes of hosts", &Counts::host_changes},
    {"elastic: jobs that failed", &Counts::jobs_ended_badly},
    {"timelines started", &Counts::timelines_started},
    {"timelines stopped", &Counts::timelines_stopped},
    {"  with a complete file", &Counts::timelines_complete},
    {"  without one", &Counts::timelines_failed},
};

const std::vector<std::pair<std::string, Sabotage>>& Sabotages() {
  static const auto& all = *new std::vector<std::pair<std::string, Sabotage>>{
      {"", Sabotage::kNone},
      {"drop_message", Sabotage::kDropMessage},
      {"swap_runs", Sabotage::kSwapRuns},
      {"ignore_death", Sabotage::kIgnoreDeath},
      {"wrong_sum", Sabotage::kWrongSum},
      {"no_wake", Sabotage::kNoWake},
      {"no_mismatch", Sabotage::kNoMismatch},
      {"skip_run", Sabotage::kSkipRun},
      {"forget_chunk", Sabotage::kForgetChunk},
      {"late_write", Sabotage::kLateWrite},
      {"keep_epoch", Sabotage::kKeepEpoch},
      {"no_drain", Sabotage::kNoDrain},
      {"no_wish", Sabotage::kNoWish},
  };
  return all;
}

}  // namespace

void Report::Add(uint64_t seed, const RunResult& result, bool elastic) {
  for (const Counter& c : kCounters) counts_.*c.value += result.counts.*c.value;
  if (result.found.empty()) return;
  ++failures_;
  for (const std::string& found : result.found) {
    absl::PrintF("seed %d: %s\n", seed, found);
  }
  absl::PrintF("  to replay: simulation%s --seed=%d --trace\n",
               elastic ? " --elastic" : "", seed);
  std::fflush(stdout);
}

std::string Report::Text() const {
  std::string out;
  for (const Counter& c : kCounters) {
    absl::StrAppendFormat(&out, "%-32s %d\n", c.name, counts_.*c.value);
  }
  absl::StrAppendFormat(&out, "%-32s %d\n", "seeds that failed", failures_);
  return out;
}

bool ReadSabotage(const std::string& name, Sabotage* out) {
  for (const auto& [n, sabotage] : Sabotages()) {
    if (n != name) continue;
    *out = sabotage;
    return true;
  }
  return false;
}

std::string SabotageNames() {
  std::string out;
  for (const auto& [name, sabotage] : Sabotages()) {
    if (!name.empty()) absl::StrAppend(&out, name, " ");
  }
  return out;
}

}  // namespace maypole::simulation
