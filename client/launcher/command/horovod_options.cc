#include "client/launcher/command/horovod_options.h"

#include <algorithm>
#include <string_view>
#include <utility>

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

void DefineWithoutEffect(HorovodGiven* given, CommandLine* line) {
  for (const char* name :
       {"--disable-cache", "--gloo", "--tcp", "--hierarchical-allreduce",
        "--no-hierarchical-allreduce", "--hierarchical-allgather",
        "--no-hierarchical-allgather", "--torus-allreduce",
        "--no-torus-allreduce", "--autotune", "--no-autotune",
        "--mpi-threads-disable", "--no-mpi-threads-disable",
        "--log-with-timestamp", "--log-without-timestamp",
        "--log-hide-timestamp", "--no-log-hide-timestamp"}) {
    line->AddUnabbreviated({name}, SwitchValue(&given->flag), "");
  }
  for (const char* name :
       {"--cycle-time-ms", "--cache-capacity", "--autotune-log-file",
        "--autotune-warmup-samples", "--autotune-steps-per-sample",
        "--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise",
        "--num-nccl-streams", "--thread-affinity", "--mpi-args",
        "--binding-args"}) {
    line->AddUnabbreviated({name}, TextValue(&given->text, "VALUE"), "");
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
  line->AddUnabbreviated(
      {"--gloo-timeout-seconds"}, SecondsValue(&given->network_timeout_s, 1),
      "after how long without an answer a connection between nodes has failed; "
      "maypole-worker's --network_timeout");
  line->AddUnabbreviated(
      {"--log-level"},
      ChoiceValue(&given->log_level, {"DEBUG", "INFO", "WARNING", "ERROR"},
                  {"TRACE", "FATAL"})
          .WithDefault("WARNING"),
      "what the daemons log");
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
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) {
      candidates.push_back(std::string(rest.substr(0, end)) + "/horovod_shim");
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
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

void ApplyHorovod(const HorovodGiven& given, LauncherOptions* o) {
  const auto set = [o](const char* name, const std::string& value) {
    o->environment.emplace_back(name, value);
  };
  o->interfaces.insert(o->interfaces.end(), given.interfaces.begin(),
                       given.interfaces.end());
  if (given.fusion_threshold_mb >= 0) {
    set("MAYPOLE_FUSION_THRESHOLD",
        std::to_string(int64_t{given.fusion_threshold_mb} << 20));
  }
  if (!given.stall_check) set("MAYPOLE_STALL_CHECK_DISABLE", "1");
  if (given.stall_warning_s >= 0) {
    set("MAYPOLE_STALL_CHECK_TIME_SECONDS",
        std::to_string(given.stall_warning_s));
  }
  if (given.stall_shutdown_s >= 0) {
    set("MAYPOLE_STALL_SHUTDOWN_TIME_SECONDS",
        std::to_string(given.stall_shutdown_s));
  }
  if (given.network_timeout_s >= 0) {
    o->agent_flags.push_back(
        "--network_timeout=" + std::to_string(given.network_timeout_s) + "s");
  }
  if (given.log_level.empty()) return;
  // The daemons' levels.
  std::string level = given.log_level;
  if (level == "TRACE") level = "DEBUG";
  if (level == "FATAL") level = "ERROR";
  for (char& c : level) c = static_cast<char>(c - 'A' + 'a');
  o->agent_flags.push_back("--log_level=" + level);
  o->coordinator_flags.push_back("--log_level=" + level);
}

}  // namespace maypole::launcher
