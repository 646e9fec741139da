// RankOptions: where this process stands in its job.
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_RANK_OPTIONS_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_RANK_OPTIONS_H_

#include <cstdint>
#include <string>

#include "client/bootstrap/launcher_info.h"
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
  int64_t agent_uid = -1;  // whose it may be besides root's and our own; -1: -
  LauncherInfo found;      // what the launcher says
  int start_timeout_seconds = 120;
  int spin_microseconds = -1;     // -1: chosen by the cores at hand
  int64_t fusion_threshold = -1;  // bytes; -1: the coordinator's own
  // After how long stragglers are reported, and end the job; -1: as the
  // coordinator does, 0: never.
  int64_t stall_check_ms = -1;
  int64_t stall_shutdown_ms = -1;
  bool deadlock_check = true;  // tell when this rank is blocked for certain
  // An elastic job: the places above are given by each epoch's start. To go on
  // in the next epoch, a process joins with the options that its last client
  // had: `rank` in `last_epoch` is then what it was (last_epoch 0: it is new).
  bool elastic = false;
  int min_size = 1;  // ranks that an epoch has
  int max_size = kMaxRanks;
  uint64_t last_epoch = 0;

  // A job of one rank without an agent runs in this process alone.
  bool local() const { return size == 1 && agent.empty(); }
};

// Reads MAYPOLE_* (and HOROVOD_FUSION_THRESHOLD, HOROVOD_STALL_*,
// HOROVOD_START_TIMEOUT) through `get` (as getenv: null if unset), and without
// MAYPOLE_SIZE what the launcher has set (client/bootstrap/launcher_info.h): a
// variable of ours wins over what is found there. A missing or malformed
// variable is an error that names it and what to do.
Status ReadRankOptions(const Getter& get, RankOptions* out,
                       const ProcessFacts& facts = ThisProcessFacts());

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_RANK_OPTIONS_H_
