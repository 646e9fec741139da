#include "client/launcher/command/horovod_options.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/bootstrap/rank_variables.h"

namespace maypole::launcher {
namespace {

constexpr int kMostSeconds = 24 * 3600;
constexpr int kMostMegabytes = 1 << 20;

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

OptionValue SecondsValue(int* out, int least) {
  return IntegerValue(out, least, kMostSeconds)
      .WithName("SECONDS")
      .WithDefault("");
}

void DefineStallCheck(HorovodGiven* given, CommandLine* line) {
  line->AddUnabbreviated({"--stall-check"}, SwitchValue(&given->stall_check),
                         "report stragglers, which is the default");
  line->AddUnabbreviated({"--no-stall-check"},
                         SwitchValue(&given->stall_check, false),
                         "do not report stragglers");
  line->AddUnabbreviated({"--stall-check-warning-time-seconds"},
                         SecondsValue(&given->stall_warning_s, 0),
                         "after how long a straggler is reported; the ranks' "
                         "MAYPOLE_STALL_CHECK_TIME_SECONDS");
  line->AddUnabbreviated(
      {"--stall-check-shutdown-time-seconds"},
      SecondsValue(&given->stall_shutdown_s, 0),
      "after how long a straggler ends the job, 0: never; the ranks' "
      "MAYPOLE_STALL_SHUTDOWN_TIME_SECONDS");
}

void DefineTimeline(HorovodGiven* given, CommandLine* line) {
  line->AddUnabbreviated(
      {"--timeline-filename"}, TextValue(&given->timeline, "FILE"),
      "record what all ranks do in this file, of rank 0's host "
      "(docs/timeline.md); the ranks' MAYPOLE_TIMELINE");
  line->AddUnabbreviated({"--timeline-mark-cycles"},
                         SwitchValue(&given->timeline_mark_cycles),
                         "mark in it each report of operations to the "
                         "coordinator; the ranks' "
                         "MAYPOLE_TIMELINE_MARK_CYCLES");
  line->AddUnabbreviated({"--no-timeline-mark-cycles"},
                         SwitchValue(&given->timeline_mark_cycles, false),
                         "do not mark them, which is the default");
}

// Why options have no effect.
constexpr char kNoTimer[] =
    "an operation runs as soon as all ranks have submitted it, not on a timer, "
    "and there is no cache to size";
constexpr char kNodesFirst[] =
    "operations are always reduced on each node first, then between nodes";
constexpr char kNothingToTune[] =
    "there is nothing to tune: no timer and no cache, and the coordinator "
    "learns from the running job what to fuse";
constexpr char kNoMpi[] =
    "Maypole does not use MPI; to have mpirun start the ranks, run mpirun "
    "itself";
constexpr char kOwnStreams[] = "Maypole chooses the streams of NCCL itself";
constexpr char kSoAnyway[] = "";  // no note

struct WithoutEffect {
  const char* name;
  bool takes_value;
  const char* why;
};

constexpr WithoutEffect kWithoutEffect[] = {
    {"--disable-cache", false, kSoAnyway},
    {"--gloo", false, kSoAnyway},
    {"--cycle-time-ms", true, kNoTimer},
    {"--cache-capacity", true, kNoTimer},
    {"--hierarchical-allreduce", false, kSoAnyway},
    {"--no-hierarchical-allreduce", false, kNodesFirst},
    {"--hierarchical-allgather", false, kSoAnyway},
    {"--no-hierarchical-allgather", false, kNodesFirst},
    {"--torus-allreduce", false, kNodesFirst},
    {"--no-torus-allreduce", false, kSoAnyway},
    {"--autotune", false, kNothingToTune},
    {"--no-autotune", false, kSoAnyway},
    {"--autotune-log-file", true, kNothingToTune},
    {"--autotune-warmup-samples", true, kNothingToTune},
    {"--autotune-steps-per-sample", true, kNothingToTune},
    {"--autotune-bayes-opt-max-samples", true, kNothingToTune},
    {"--autotune-gaussian-process-noise", true, kNothingToTune},
    {"--mpi", false, kNoMpi},
    {"--mpi-args", true, kNoMpi},
    {"--mpi-threads-disable", false, kSoAnyway},
    {"--no-mpi-threads-disable", false, kSoAnyway},
    {"--tcp", false, kNoMpi},
    {"--binding-args", true, kNoMpi},
    {"--num-nccl-streams", true, kOwnStreams},
};

void DefineWithoutEffect(HorovodGiven* given, CommandLine* line) {
  for (const WithoutEffect& option : kWithoutEffect) {
    OptionValue value;
    if (option.takes_value) value.name = "VALUE";
    value.store = [given, &option](const std::string&) {
      auto& names = given->without_effect[option.why];
      if (std::find(names.begin(), names.end(), option.name) == names.end()) {
        names.emplace_back(option.name);
      }
      return true;
    };
    line->AddUnabbreviated({option.name}, std::move(value), "");
  }
}

OptionValue ValueOf(std::optional<bool>* out, bool value) {
  OptionValue option;
  option.store = [out, value](const std::string&) {
    *out = value;
    return true;
  };
  return option;
}

void DefineLog(HorovodGiven* given, CommandLine* line) {
  line->AddUnabbreviated(
      {"--log-level"},
      ChoiceValue(&given->log_level, {"DEBUG", "INFO", "WARNING", "ERROR"},
                  {"TRACE", "FATAL"})
          .WithDefault("$MAYPOLE_LOG_LEVEL, else $HOROVOD_LOG_LEVEL, else "
                       "WARNING"),
      "what the daemons log; above WARNING, ranks do not report stalls");
  line->AddUnabbreviated({"--log-without-timestamp", "--log-hide-timestamp"},
                         ValueOf(&given->hide_time, true),
                         "leave the time out of the daemons' log lines");
  line->AddUnabbreviated({"--log-with-timestamp", "--no-log-hide-timestamp"},
                         ValueOf(&given->hide_time, false),
                         "the daemons' log lines have the time, which is the "
                         "default");
}

void AddNotes(const HorovodGiven& given, LauncherOptions* o) {
  for (const auto& [why, names] : given.without_effect) {
    if (why == kSoAnyway) continue;
    o->notes.push_back(absl::StrJoin(names, ", ") +
                       (names.size() == 1 ? " has" : " have") +
                       " no effect: " + why);
  }
}

}  // namespace

void DefineHorovod(HorovodGiven* given, CommandLine* line) {
  line->AddUnabbreviated(
      {"--horovod-shim"},
      OptionalTextValue(&given->shim, &given->shim_directory, "DIR")
          .WithDefault("horovod_shim beside the package maypole in PYTHONPATH"),
      "for scripts that import horovod: puts Maypole's package horovod, which "
      "is in DIR, at the front of the ranks' PYTHONPATH, and sets HOROVOD_RANK "
      "and its like");
  line->AddUnabbreviated({"--network-interface"},
                         RepeatedValue(&given->interfaces, "E"),
                         "as --network-interfaces; may be given several times");
  line->AddUnabbreviated(
      {"--fusion-threshold-mb"},
      IntegerValue(&given->fusion_threshold_mb, 0, kMostMegabytes)
          .WithName("MB")
          .WithDefault("64"),
      "up to how many MiB operations between nodes are fused, 0: no fusion; "
      "the ranks' MAYPOLE_FUSION_THRESHOLD, in bytes");
  DefineStallCheck(given, line);
  DefineTimeline(given, line);
  line->AddUnabbreviated(
      {"--gloo-timeout-seconds"}, SecondsValue(&given->network_timeout_s, 1),
      "after how long without an answer a connection between nodes has failed; "
      "maypole-worker's --network_timeout");
  line->AddUnabbreviated(
      {"--thread-affinity"},
      TextValue(&given->thread_affinity, "N,N,...").WithDefault("not bound"),
      "the processor of each rank's progress thread, by local rank; the ranks' "
      "MAYPOLE_THREAD_AFFINITY");
  DefineLog(given, line);
  DefineWithoutEffect(given, line);
}

Status FindShim(const Surroundings& around, const HorovodGiven& given,
                LauncherOptions* o) {
  if (!given.shim) return Status();
  o->shim_directory = given.shim_directory;
  const auto is_there = [&](const std::string& directory) {
    std::string text;
    return around.read_file(directory + "/horovod/__init__.py", &text).ok();
  };
  if (!o->shim_directory.empty()) {
    return is_there(o->shim_directory)
               ? Status()
               : Invalid("--horovod-shim=" + o->shim_directory +
                         ": no package horovod is in this directory");
  }
  // In a wheel it is beside the programs' directory.
  std::vector<std::string> candidates = {around.program_directory +
                                         "/../horovod_shim"};
  const char* path = around.variable("PYTHONPATH");
  for (const std::string& directory : std::vector<std::string>(absl::StrSplit(
           path == nullptr ? "" : path, ':', absl::SkipEmpty()))) {
    candidates.push_back(directory + "/horovod_shim");
  }
  for (const std::string& directory : candidates) {
    if (!is_there(directory)) continue;
    o->shim_directory = directory;
    return Status();
  }
  return Invalid(
      "--horovod-shim: no directory of PYTHONPATH has horovod_shim beside the "
      "package maypole: run '. deploy/env.sh', or give --horovod-shim=DIR");
}

namespace {

// A flag of the daemons that we start.
void AddDaemonFlag(const std::string& flag, LauncherOptions* o) {
  if (o->running_agents) return;
  o->agent_flags.push_back(flag);
  if (o->coordinator.empty()) o->coordinator_flags.push_back(flag);
}

// --verbose overrides the environment.
Status ChooseLevel(const Surroundings& around, const HorovodGiven& given,
                   LauncherOptions* o) {
  std::string level = given.log_level;
  if (level.empty()) {
    Status status = ReadLogLevel(around.variable, &level);
    if (!status.ok() || level.empty() || o->verbose) return status;
  }
  // The daemons' levels.
  if (level == "TRACE") level = "DEBUG";
  if (level == "FATAL") level = "ERROR";
  AddDaemonFlag("--log_level=" + absl::AsciiStrToLower(level), o);
  return Status();
}

void ChooseTime(const Surroundings& around, const HorovodGiven& given,
                LauncherOptions* o) {
  std::string name;
  const char* text = EitherVariable(around.variable, "LOG_HIDE_TIME", &name);
  const bool wanted = text != nullptr && std::string_view(text) != "0";
  if (given.hide_time.value_or(wanted)) AddDaemonFlag("--log_hide_time", o);
}

// The ranks read the variable; one line here is better than one from each.
Status CheckThreadAffinity(const Surroundings& around,
                           const HorovodGiven& given) {
  std::vector<int> processors;
  return given.thread_affinity.empty()
             ? ReadThreadAffinity(around.variable, &processors)
             : ParseProcessors("--thread-affinity", given.thread_affinity,
                               &processors);
}

}  // namespace

Status ApplyHorovod(const Surroundings& around, const HorovodGiven& given,
                    LauncherOptions* o) {
  const auto set = [o](const char* name, const std::string& value) {
    if (!value.empty()) o->environment.emplace_back(name, value);
  };
  const auto set_number = [&set](const char* name, int64_t value) {
    if (value >= 0) set(name, std::to_string(value));
  };
  AddNotes(given, o);
  o->interfaces.insert(o->interfaces.end(), given.interfaces.begin(),
                       given.interfaces.end());
  set_number("MAYPOLE_FUSION_THRESHOLD",
             int64_t{given.fusion_threshold_mb} * (1 << 20));
  set("MAYPOLE_STALL_CHECK_DISABLE", given.stall_check ? "" : "1");
  set_number("MAYPOLE_STALL_CHECK_TIME_SECONDS", given.stall_warning_s);
  set_number("MAYPOLE_STALL_SHUTDOWN_TIME_SECONDS", given.stall_shutdown_s);
  set("MAYPOLE_TIMELINE", given.timeline);
  set("MAYPOLE_TIMELINE_MARK_CYCLES", given.timeline_mark_cycles ? "1" : "");
  if (given.network_timeout_s >= 0) {
    o->agent_flags.push_back(
        "--network_timeout=" + std::to_string(given.network_timeout_s) + "s");
  }
  set(kThreadAffinityVariable, given.thread_affinity);
  set(kLogLevelVariable, given.log_level);
  ChooseTime(around, given, o);
  Status status = CheckThreadAffinity(around, given);
  return status.ok() ? ChooseLevel(around, given, o) : status;
}

}  // namespace maypole::launcher
