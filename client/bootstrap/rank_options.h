// RankOptions: this process's place in its job, and its settings.
//
// Purpose: ReadRankOptions() reads them from the environment; Client::Join()
// takes them.
//
// Thread contract: a value; ReadRankOptions() is a function without state.
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_RANK_OPTIONS_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_RANK_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/bootstrap/launcher_info.h"
#include "client/gpu/gpu_memory_options.h"
#include "common/checksum/checksum_mode.h"
#include "common/limits.h"
#include "common/status.h"

namespace maypole {

struct RankOptions {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;  // index of the node
  int cross_size = 1;  // number of nodes
  std::string job;
  std::string token;
  std::string agent;       // path of the agent's socket; empty: see
                           // client/bootstrap/node_bootstrap.h
  int64_t agent_uid = -1;  // a uid that the agent may run under, besides root
                           // and this user; -1: no other
  LauncherInfo found;      // what the launcher's variables say
  int start_timeout_seconds = 120;
  int spin_microseconds = -1;     // -1: depends on the available cores
  int64_t fusion_threshold = -1;  // bytes; -1: the coordinator's setting
  // After how long stragglers are reported, and after how long they end the
  // job; -1: the coordinator's setting, 0: never.
  int64_t stall_check_ms = -1;
  int64_t stall_shutdown_ms = -1;
  // Of the job: the highest mode that any rank asks for applies.
  ChecksumMode checksums = ChecksumMode::kOff;
  // Results of CUDA tensors: return when their copy is enqueued on the stream.
  bool async_completion = false;
  GpuMemoryOptions gpu_memory;
  // A line to show with the first CUDA tensor if the way that the user has
  // chosen for CUDA tensors is not available; empty: none.
  std::string gpu_notice;
  // The file of the timeline that rank 0 starts when it has joined; empty:
  // none.
  std::string timeline;
  bool timeline_mark_cycles = false;
  // Show lines about stalls and the like on stderr, unless the log level is
  // above WARNING.
  bool notices = true;
  // Processors for the progress threads of a node's ranks, by local rank;
  // empty: they are not bound.
  std::vector<int> thread_affinity;
  bool deadlock_check = true;  // report when this rank is certainly blocked
  // In an elastic job the coordinator assigns the ranks and sizes above when an
  // epoch starts. To continue in the next epoch, a process joins with the
  // options of its last client: `rank` is then its rank in `last_epoch`. A new
  // process has last_epoch 0. From MAYPOLE_ELASTIC, MAYPOLE_MIN_SIZE,
  // MAYPOLE_MAX_SIZE.
  bool elastic = false;
  int min_size = 1;  // limits of an epoch's number of ranks
  int max_size = kMaxRanks;
  uint64_t last_epoch = 0;

  // A job of one rank without an agent runs in this process alone.
  bool local() const { return size == 1 && agent.empty(); }
};

// Reads MAYPOLE_* (and HOROVOD_FUSION_THRESHOLD, HOROVOD_STALL_*,
// HOROVOD_START_TIMEOUT, HOROVOD_TIMELINE, HOROVOD_TIMELINE_MARK_CYCLES,
// HOROVOD_ENABLE_ASYNC_COMPLETION, HOROVOD_LOG_LEVEL, HOROVOD_THREAD_AFFINITY,
// HOROVOD_GPU_*) through `get`, which works like getenv (null if unset). If
// MAYPOLE_SIZE is not set, also reads the launcher's variables
// (client/bootstrap/launcher_info.h); MAYPOLE_* variables take precedence over
// them. If a variable is missing or malformed, the error names it and says what
// to do.
Status ReadRankOptions(const Getter& get, RankOptions* out,
                       const ProcessFacts& facts = ThisProcessFacts());

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_RANK_OPTIONS_H_
