// scale_load: loads a coordinator with the executors of one job, and measures.
//
// Purpose: speaks for --nodes executors of one job, each with a session of its
// own, over --channels connections: the start, then steps of --tensors tensors
// in each of the patterns of load.h, then an end. Prints
// "started" when the job has started, and at the end one line of JSON.
//
//   scale_load --address=127.0.0.1:4001 --coordinator=PID --nodes=64
//
// scale.py starts coordinators and runs it.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/program/process.h"
#include "tests/scale/load.h"

ABSL_FLAG(std::string, address, "", "HOST:PORT of the coordinator.");
ABSL_FLAG(int, coordinator, 0, "Its process id; 0: its use is not measured.");
ABSL_FLAG(std::string, job, "load", "The job's id.");
ABSL_FLAG(uint32_t, nodes, 2, "Executors.");
ABSL_FLAG(uint32_t, ranks, 8, "Ranks of an executor.");
ABSL_FLAG(uint32_t, tensors, 161, "Tensors of a step, at most 161.");
ABSL_FLAG(uint32_t, channels, 4, "HTTP/2 connections for all executors.");
ABSL_FLAG(uint32_t, warmup, 5, "Steps that are not counted.");
ABSL_FLAG(uint32_t, together, 10, "Steps: all nodes report at once.");
ABSL_FLAG(uint32_t, late, 0, "Steps: all wait for one node.");
ABSL_FLAG(uint32_t, paced, 0, "Steps: tensors come one after the other.");
ABSL_FLAG(uint32_t, pace_ms, 100, "How long the tensors of a paced step take.");
ABSL_FLAG(std::string, end, "none",
          "none; rank: a rank dies; stream: a node's stream breaks; leave: all "
          "ranks leave.");
ABSL_FLAG(double, seconds, 0, "Repeats the steps for at least this long.");

namespace maypole::scale {
namespace {

// The smallest value that at least this part of the values does not exceed.
double Quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = part * static_cast<double>(values.size());
  const size_t i = static_cast<size_t>(place);
  return values[std::min(i, values.size() - 1)];
}

std::string Text(const Cost& cost, double times) {
  return absl::StrFormat(
      "\"coordinator_cpu_s\": %.6f, \"load_cpu_s\": %.6f, "
      "\"messages_in\": %.1f, \"bytes_in\": %.1f, \"messages_out\": %.1f, "
      "\"bytes_out\": %.1f",
      cost.coordinator_cpu / times, cost.load_cpu / times,
      static_cast<double>(cost.traffic.sent_messages) / times,
      static_cast<double>(cost.traffic.sent_bytes) / times,
      static_cast<double>(cost.traffic.received_messages) / times,
      static_cast<double>(cost.traffic.received_bytes) / times);
}

std::string Text(const Steps& s) {
  const double times = static_cast<double>(std::max<size_t>(1, s.steps));
  return absl::StrFormat(
      "{\"steps\": %d, \"seconds\": %.6f, \"step_p50_ms\": %.3f, "
      "\"step_p99_ms\": %.3f, \"operation_p50_ms\": %.3f, "
      "\"operation_p99_ms\": %.3f, \"runs\": %.2f, %s}",
      s.steps, s.seconds / times, Quantile(s.step_ms, 0.5),
      Quantile(s.step_ms, 0.99), Quantile(s.operation_ms, 0.5),
      Quantile(s.operation_ms, 0.99), static_cast<double>(s.runs) / times,
      Text(s.cost, times));
}

absl::StatusOr<std::string> Measure() {
  LoadOptions options;
  options.address = absl::GetFlag(FLAGS_address);
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.job = absl::GetFlag(FLAGS_job);
  options.nodes = absl::GetFlag(FLAGS_nodes);
  options.ranks_per_node = absl::GetFlag(FLAGS_ranks);
  options.tensors = absl::GetFlag(FLAGS_tensors);
  options.channels = absl::GetFlag(FLAGS_channels);
  options.pace = std::chrono::milliseconds(absl::GetFlag(FLAGS_pace_ms));
  // Never destroyed: the streams end with the process.
  Load* const load = new Load(options);
  const absl::StatusOr<Start> start = load->Connect();
  if (!start.ok()) return start.status();
  std::printf("started\n");
  std::fflush(stdout);
  std::string out = absl::StrFormat(
      "{\"nodes\": %d, \"ranks\": %d, \"tensors\": %d, \"channels\": %d, "
      "\"start\": {\"welcomed_s\": %.6f, \"started_s\": %.6f, "
      "\"connected_s\": %.6f, %s}",
      options.nodes, options.nodes * options.ranks_per_node, options.tensors,
      options.channels, start->welcomed, start->started, start->connected,
      Text(start->cost, 1));
  const absl::StatusOr<Steps> warmup =
      load->Run(Pattern::kTogether, absl::GetFlag(FLAGS_warmup));
  if (!warmup.ok()) return warmup.status();
  struct Part {
    const char* name;
    Pattern pattern;
    size_t steps;
  };
  for (const Part& part :
       {Part{"together", Pattern::kTogether, absl::GetFlag(FLAGS_together)},
        Part{"late", Pattern::kLate, absl::GetFlag(FLAGS_late)},
        Part{"paced", Pattern::kPaced, absl::GetFlag(FLAGS_paced)}}) {
    if (part.steps == 0) continue;
    const absl::StatusOr<Steps> steps =
        load->Run(part.pattern, part.steps, absl::GetFlag(FLAGS_seconds));
    if (!steps.ok()) return steps.status();
    absl::StrAppend(&out, ", \"", part.name, "\": ", Text(*steps));
  }
  const absl::StatusOr<Memory> memory = load->CoordinatorMemory();
  if (!memory.ok()) return memory.status();
  absl::StrAppend(&out, ", \"resident_bytes\": ", memory->resident_bytes,
                  ", \"most_resident_bytes\": ", memory->most_resident_bytes,
                  ", \"threads\": ", memory->threads);
  const std::string end = absl::GetFlag(FLAGS_end);
  if (end == "none") return out + "}";
  const absl::StatusOr<double> seconds =
      load->Finish(end == "rank"     ? Ending::kRankDies
                   : end == "stream" ? Ending::kStreamBreaks
                                     : Ending::kAllLeave);
  if (!seconds.ok()) return seconds.status();
  absl::StrAppendFormat(&out, ", \"end_s\": %.6f", *seconds);
  return out + "}";
}

int Main() {
  RaiseOpenFiles();
  const absl::StatusOr<std::string> line = Measure();
  if (line.ok()) {
    std::printf("%s\n", line->c_str());
  } else {
    std::fprintf(stderr, "scale_load: %s\n", line.status().ToString().c_str());
  }
  std::fflush(nullptr);
  std::_Exit(line.ok() ? 0 : 1);
}

}  // namespace
}  // namespace maypole::scale

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return maypole::scale::Main();
}
