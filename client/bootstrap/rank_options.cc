#include "client/bootstrap/rank_options.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "client/bootstrap/rank_variables.h"
#include "client/gpu/gpu_site.h"
#include "common/fusion_threshold.h"
#include "common/limits.h"
#include "common/name.h"
#include "common/parse.h"

namespace maypole {
namespace {

Status ReadInt(const Getter& get, const char* name, int least, int most,
               int* out) {
  const char* text = get(name);
  if (text == nullptr || *text == 0) return Status();
  if (!ParseNumber(text, least, most, out)) {
    return Status(Code::kInvalidArgument, std::string(name) + "='" + text +
                                              "': expected a number from " +
                                              std::to_string(least) + " to " +
                                              std::to_string(most));
  }
  return Status();
}

Status ReadText(const Getter& get, const char* name, size_t most,
                std::string* out) {
  const char* text = get(name);
  if (text == nullptr) return Status();
  if (std::strlen(text) > most) {
    return Status(Code::kInvalidArgument, std::string(name) + " exceeds " +
                                              std::to_string(most) + " bytes");
  }
  *out = text;
  return Status();
}

// Seconds, fractions allowed, as milliseconds.
Status ReadSeconds(const Getter& get, const std::string& name, int64_t* out) {
  std::string full;
  const char* text = EitherVariable(get, name, &full);
  if (text == nullptr) return Status();
  double value = 0;
  const char* end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, value);
  if (error != std::errc() || at != end || !(value >= 0) || value > 1e6) {
    return Status(
        Code::kInvalidArgument,
        full + "='" + text + "': expected seconds, a number from 0 to 1000000");
  }
  *out = static_cast<int64_t>(value * 1000);
  return Status();
}

bool IsSet(const Getter& get, const std::string& name) {
  std::string full;
  const char* text = EitherVariable(get, name, &full);
  return text != nullptr && std::strcmp(text, "0") != 0;
}

Status ReadChecksums(const Getter& get, RankOptions* o) {
  const char* text = get(kChecksumVariable);
  return ParseChecksumMode(kChecksumVariable, text == nullptr ? "" : text,
                           &o->checksums);
}

// Reads Horovod's variables, and Maypole's with the same meaning.
Status ReadStall(const Getter& get, RankOptions* o) {
  Status s = ReadSeconds(get, "STALL_CHECK_TIME_SECONDS", &o->stall_check_ms);
  if (s.ok()) {
    s = ReadSeconds(get, "STALL_SHUTDOWN_TIME_SECONDS", &o->stall_shutdown_ms);
  }
  if (!s.ok()) return s;
  if (IsSet(get, "STALL_CHECK_DISABLE")) {
    o->stall_check_ms = o->stall_shutdown_ms = 0;
  }
  o->deadlock_check = !IsSet(get, "DEADLOCK_CHECK_DISABLE");
  o->async_completion = IsSet(get, "ENABLE_ASYNC_COMPLETION");
  return Status();
}

// MPI means through host memory. The variable for allreduce overrides that for
// all kinds.
bool AllreduceThroughHost(const Getter& get) {
  for (const char* kind : {"GPU_ALLREDUCE", "GPU_OPERATIONS"}) {
    std::string full;
    const char* text = EitherVariable(get, kind, &full);
    if (text != nullptr) return std::strcmp(text, "MPI") == 0;
  }
  return false;
}

// How operations on CUDA tensors run, by kind. Horovod decides this at build
// time; Maypole at run time.
Status ReadGpuWays(const Getter& get, RankOptions* o) {
  std::string nccl;
  for (const char* kind :
       {"GPU_OPERATIONS", "GPU_ALLREDUCE", "GPU_ALLGATHER", "GPU_BROADCAST",
        "GPU_ALLTOALL", "GPU_REDUCESCATTER"}) {
    std::string full;
    const char* text = EitherVariable(get, kind, &full);
    if (text == nullptr || std::strcmp(text, "MPI") == 0) continue;
    if (std::strcmp(text, "NCCL") == 0) {
      nccl += (nccl.empty() ? "" : ", ") + full;
      continue;
    }
    return Status(
        Code::kInvalidArgument,
        full + "=" + text + ": " +
            (std::strcmp(text, "DDL") == 0 ? "DDL is not supported; " : "") +
            "expected NCCL, or MPI (copies through host memory)");
  }
  if (AllreduceThroughHost(get)) o->gpu_memory.mode = GpuMemoryMode::kNone;
  if (!nccl.empty()) {
    o->gpu_notice = "maypole: " + nccl +
                    "=NCCL: NCCL is used where it is found "
                    "(maypolerun --check-build), for the kinds of operations "
                    "in docs/gpu.md; the others are copied through host memory";
  }
  return Status();
}

// zero: what 0 means.
Status ReadGpuBytes(const Getter& get, const std::string& name,
                    const std::string& zero, int64_t* out) {
  const char* text = get(name.c_str());
  if (text == nullptr || *text == 0) return Status();
  constexpr auto kMost = static_cast<int64_t>(kMaxGpuMemoryBytes);
  if (ParseNumber(text, int64_t{0}, kMost, out)) return Status();
  return Status(Code::kInvalidArgument,
                name + "='" + text + "': expected a number of bytes from 0 (" +
                    zero + ") to " + std::to_string(kMost));
}

Status ReadGpuMemory(const Getter& get, RankOptions* o) {
  constexpr std::pair<std::string_view, GpuMemoryMode> kModes[] = {
      {"", GpuMemoryMode::kAuto},
      {"auto", GpuMemoryMode::kAuto},
      {"descriptor", GpuMemoryMode::kDescriptor},
      {"ipc", GpuMemoryMode::kIpcHandle},
      {"host", GpuMemoryMode::kNone},
  };
  if (const char* text = get("MAYPOLE_GPU_MEMORY"); text != nullptr) {
    const auto* const mode =
        std::find_if(std::begin(kModes), std::end(kModes),
                     [&](const auto& m) { return m.first == text; });
    if (mode == std::end(kModes)) {
      return Status(Code::kInvalidArgument,
                    std::string("MAYPOLE_GPU_MEMORY='") + text +
                        "': expected auto, descriptor, ipc, or host (copies "
                        "through host memory)");
    }
    o->gpu_memory.mode = mode->second;
  }
  o->gpu_memory.host_bytes = GpuMemoryOptions::kByDevice;
  Status s = ReadGpuBytes(get, "MAYPOLE_GPU_MEMORY_BYTES", "none",
                          &o->gpu_memory.limit);
  if (s.ok()) {
    s = ReadGpuBytes(get, "MAYPOLE_GPU_HOST_BYTES", "only what GPUs cannot do",
                     &o->gpu_memory.host_bytes);
  }
  return s;
}

// Read after the other GPU variables: `host` in any of them means host.
Status ReadGpuSite(const Getter& get, RankOptions* o) {
  const char* text = get(kGpuSiteVariable);
  GpuSite site = GpuSite::kAuto;
  Status s = ParseGpuSite(kGpuSiteVariable, text == nullptr ? "" : text, &site);
  if (!s.ok()) return s;
  const bool on_gpu = site == GpuSite::kAgent || site == GpuSite::kClient;
  if (on_gpu && o->gpu_memory.mode == GpuMemoryMode::kNone) {
    return Status(Code::kInvalidArgument,
                  std::string(kGpuSiteVariable) + "=" + text +
                      " runs operations on GPUs, which MAYPOLE_GPU_MEMORY=host "
                      "or HOROVOD_GPU_ALLREDUCE=MPI turns off: leave one of "
                      "them out");
  }
  // A user who chooses how memory is shared wants it to be shared.
  o->gpu_memory.chooses_site =
      site == GpuSite::kAuto && o->gpu_memory.mode == GpuMemoryMode::kAuto;
  if (site == GpuSite::kHost) o->gpu_memory.mode = GpuMemoryMode::kNone;
  if (site == GpuSite::kClient) o->gpu_memory.mode = GpuMemoryMode::kOwn;
  return Status();
}

Status CheckPlaces(const RankOptions& o) {
  auto bad = [](const char* what, int value, const char* of, int limit) {
    return Status(Code::kInvalidArgument,
                  std::string(what) + "=" + std::to_string(value) +
                      " does not fit " + of + "=" + std::to_string(limit));
  };
  if (o.rank >= o.size)
    return bad("MAYPOLE_RANK", o.rank, "MAYPOLE_SIZE", o.size);
  if (o.local_size > o.size) {
    return bad("MAYPOLE_LOCAL_SIZE", o.local_size, "MAYPOLE_SIZE", o.size);
  }
  if (o.local_rank >= o.local_size) {
    return bad("MAYPOLE_LOCAL_RANK", o.local_rank, "MAYPOLE_LOCAL_SIZE",
               o.local_size);
  }
  if (o.cross_rank >= o.cross_size) {
    return bad("MAYPOLE_CROSS_RANK", o.cross_rank, "MAYPOLE_CROSS_SIZE",
               o.cross_size);
  }
  return Status();
}

}  // namespace

namespace {

Status ReadNumbers(const Getter& get, RankOptions* o) {
  int uid = -1;
  std::string start_timeout;
  (void)EitherVariable(get, "START_TIMEOUT", &start_timeout);
  const struct {
    const char* name;
    int least, most;
    int* value;
  } numbers[] = {
      {"MAYPOLE_SIZE", 1, kMaxRanks, &o->size},
      {"MAYPOLE_RANK", 0, kMaxRanks - 1, &o->rank},
      {"MAYPOLE_LOCAL_SIZE", 1, kMaxLocalRanks, &o->local_size},
      {"MAYPOLE_LOCAL_RANK", 0, kMaxLocalRanks - 1, &o->local_rank},
      {"MAYPOLE_CROSS_SIZE", 1, kMaxRanks, &o->cross_size},
      {"MAYPOLE_CROSS_RANK", 0, kMaxRanks - 1, &o->cross_rank},
      {start_timeout.c_str(), 1, 86400, &o->start_timeout_seconds},
      {"MAYPOLE_SPIN_US", 0, 1000000, &o->spin_microseconds},
      {"MAYPOLE_AGENT_UID", 0, std::numeric_limits<int>::max(), &uid},
  };
  for (const auto& n : numbers) {
    if (Status s = ReadInt(get, n.name, n.least, n.most, n.value); !s.ok()) {
      return s;
    }
  }
  o->agent_uid = uid;
  return Status();
}

Status ReadTexts(const Getter& get, RankOptions* o) {
  if (const char* job = get("MAYPOLE_JOB"); job != nullptr) o->job = job;
  std::string full;
  const char* timeline = EitherVariable(get, "TIMELINE", &full);
  // DYNAMIC allows Horovod's scripts to start a timeline; here they always may.
  if (timeline != nullptr && std::strcmp(timeline, "DYNAMIC") != 0) {
    o->timeline = timeline;
  }
  o->timeline_mark_cycles = IsSet(get, "TIMELINE_MARK_CYCLES");
  Status s = ReadText(get, "MAYPOLE_TOKEN", kMaxTokenBytes, &o->token);
  if (s.ok()) s = ReadText(get, "MAYPOLE_AGENT", 107, &o->agent);
  return s;
}

Status ReadLogAndThread(const Getter& get, RankOptions* o) {
  std::string level;
  Status s = ReadLogLevel(get, &level);
  o->notices = level != "ERROR" && level != "FATAL";
  return s.ok() ? ReadThreadAffinity(get, &o->thread_affinity) : s;
}

// The coordinator assigns the numbers of an elastic rank, so no launcher may.
Status ReadElastic(const Getter& get, RankOptions* o) {
  int elastic = 0;
  Status s = ReadInt(get, "MAYPOLE_ELASTIC", 0, 1, &elastic);
  if (!s.ok() || elastic == 0) return s;
  o->elastic = true;
  s = ReadInt(get, "MAYPOLE_MIN_SIZE", 1, kMaxRanks, &o->min_size);
  if (s.ok()) {
    s = ReadInt(get, "MAYPOLE_MAX_SIZE", 1, kMaxRanks, &o->max_size);
  }
  if (!s.ok()) return s;
  if (o->min_size > o->max_size) {
    return Status(
        Code::kInvalidArgument,
        "MAYPOLE_MIN_SIZE=" + std::to_string(o->min_size) +
            " exceeds MAYPOLE_MAX_SIZE=" + std::to_string(o->max_size));
  }
  for (const char* place :
       {"MAYPOLE_RANK", "MAYPOLE_SIZE", "MAYPOLE_LOCAL_RANK",
        "MAYPOLE_LOCAL_SIZE", "MAYPOLE_CROSS_RANK", "MAYPOLE_CROSS_SIZE"}) {
    const char* text = get(place);
    if (text == nullptr || *text == 0) continue;
    return Status(Code::kInvalidArgument,
                  std::string(place) + "=" + text +
                      " is set, but MAYPOLE_ELASTIC=1 too: the coordinator "
                      "numbers the ranks of an elastic job; unset one of them");
  }
  for (const char* needed : {"MAYPOLE_AGENT", "MAYPOLE_JOB"}) {
    const char* text = get(needed);
    if (text != nullptr && *text != 0) continue;
    return Status(Code::kInvalidArgument,
                  std::string("MAYPOLE_ELASTIC=1 but ") + needed +
                      " is not set; start the ranks with maypolerun --min-np, "
                      "or unset MAYPOLE_ELASTIC");
  }
  return Status();
}

// Reads the launcher's variables, unless MAYPOLE_SIZE is set or the job is
// elastic.
Status ReadPlace(const Getter& get, const ProcessFacts& facts, RankOptions* o) {
  const char* size = get("MAYPOLE_SIZE");
  if (o->elastic || (size != nullptr && *size != 0)) return Status();
  if (Status s = DetectLauncher(get, facts, &o->found); !s.ok()) return s;
  o->rank = o->found.rank;
  o->size = o->found.size;
  o->local_rank = o->found.local_rank;
  o->local_size = o->found.local_size;
  o->job = o->found.job;
  return Status();
}

}  // namespace

Status ReadRankOptions(const Getter& get, RankOptions* out,
                       const ProcessFacts& facts) {
  RankOptions o;
  Status s = ReadElastic(get, &o);
  if (s.ok()) s = ReadPlace(get, facts, &o);
  if (s.ok()) s = ReadNumbers(get, &o);
  if (s.ok()) s = ReadFusionThreshold(get, &o.fusion_threshold);
  if (s.ok()) s = ReadStall(get, &o);
  if (s.ok()) s = ReadChecksums(get, &o);
  if (s.ok()) s = ReadLogAndThread(get, &o);
  if (s.ok()) s = ReadGpuMemory(get, &o);
  if (s.ok()) s = ReadGpuWays(get, &o);
  if (s.ok()) s = ReadGpuSite(get, &o);
  if (s.ok()) s = ReadTexts(get, &o);
  if (s.ok()) s = CheckPlaces(o);
  if (!s.ok()) return s;
  if (o.size > 1 && o.job.empty()) {
    return Status(Code::kInvalidArgument,
                  "MAYPOLE_SIZE=" + std::to_string(o.size) +
                      " but MAYPOLE_JOB is not set; start the ranks with "
                      "maypolerun, or unset MAYPOLE_SIZE for a job of one "
                      "rank");
  }
  if (!o.agent.empty() && o.job.empty()) {
    return Status(Code::kInvalidArgument,
                  "MAYPOLE_AGENT is set but MAYPOLE_JOB is not; start the "
                  "ranks with maypolerun, or unset MAYPOLE_AGENT");
  }
  // A job of one rank in process never shows its name.
  if (!o.job.empty() && (o.size > 1 || !o.agent.empty())) {
    s = CheckName("MAYPOLE_JOB", o.job, kMaxJobBytes);
    if (!s.ok()) return s;
  }
  *out = std::move(o);
  return Status();
}

}  // namespace maypole
