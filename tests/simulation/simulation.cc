// simulation: plays seeds.
//
//   simulation --seed=17 --trace        one seed, printing each event
//   simulation --first=1 --seeds=1000   many seeds; prints broken promises
//   simulation --elastic ...            the seeds of elastic jobs
#include <cstdio>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/simulation/elastic_world.h"
#include "tests/simulation/report.h"
#include "tests/simulation/world.h"

ABSL_FLAG(uint64_t, seed, 0, "play this one seed");
ABSL_FLAG(bool, trace, false, "print what happens");
ABSL_FLAG(uint64_t, first, 1, "play --seeds seeds from this one on");
ABSL_FLAG(uint64_t, seeds, 1000, "how many");
ABSL_FLAG(bool, elastic, false, "play elastic jobs, whose ranks come and go");
ABSL_FLAG(uint32_t, slots, 64,
          "slots of a node; with fewer than 64 each step has its own names");
ABSL_FLAG(bool, checksums, false, "the ranks compare their results");
ABSL_FLAG(bool, repeats, false, "programs with equal steps");
ABSL_FLAG(bool, tree, false,
          "nodes agree on schedules, and pass on messages, through a tree");
ABSL_FLAG(bool, restarts, false,
          "no other faults, but the coordinator is killed often");
ABSL_FLAG(bool, agents, false, "agents die, and are started again");
ABSL_FLAG(bool, timelines, false, "an operator starts and stops timelines");
ABSL_FLAG(int, most_failures, 10, "stop after this number of failed seeds");
ABSL_FLAG(std::string, sabotage, "",
          "inject this defect, which the checker must find; 'list' lists all");

int main(int argc, char** argv) {
  using namespace maypole::simulation;
  absl::ParseCommandLine(argc, argv);
  RunOptions options;
  options.trace = absl::GetFlag(FLAGS_trace);
  options.slots = absl::GetFlag(FLAGS_slots);
  options.checksums = absl::GetFlag(FLAGS_checksums);
  options.repeats = absl::GetFlag(FLAGS_repeats);
  options.tree = absl::GetFlag(FLAGS_tree);
  options.restarts = absl::GetFlag(FLAGS_restarts);
  options.agents = absl::GetFlag(FLAGS_agents);
  options.timelines = absl::GetFlag(FLAGS_timelines);
  if (!ReadSabotage(absl::GetFlag(FLAGS_sabotage), &options.sabotage)) {
    absl::PrintF("sabotages: %s\n", SabotageNames());
    return 2;
  }
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  const uint64_t first = seed > 0 ? seed : absl::GetFlag(FLAGS_first);
  const uint64_t seeds = seed > 0 ? 1 : absl::GetFlag(FLAGS_seeds);
  const bool elastic = absl::GetFlag(FLAGS_elastic);
  Report report;
  for (uint64_t i = first; i < first + seeds; ++i) {
    options.seed = i;
    report.Add(i, elastic ? PlayElastic(options) : Play(options), elastic);
    if (report.failures() >= absl::GetFlag(FLAGS_most_failures)) break;
  }
  absl::PrintF("%s", report.Text());
  return report.failures() > 0 ? 1 : 0;
}
