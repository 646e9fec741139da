// ExecutorCoreOptions: the settings of an executor's core.
//
// Thread contract: a value.
#ifndef MAYPOLE_WORKER_CORE_EXECUTOR_CORE_OPTIONS_H_
#define MAYPOLE_WORKER_CORE_EXECUTOR_CORE_OPTIONS_H_

#include <cstdint>
#include <string>

#include "common/board/board.h"
#include "common/wire/session_messages.h"

namespace maypole::worker {

struct ExecutorCoreOptions {
  std::string job;
  std::string node;
  std::string host;
  uint32_t slots = kMaxSlots;
  uint32_t records = kMaxRuns;
  uint32_t chunk_bytes = 1 << 20;
  uint32_t ring_depth = 2;
  uint64_t arena_bytes = 0;
  int64_t start_timeout_ms = 120000;
  int64_t resume_timeout_ms = 3000;
  // How long ranks wait for something that only the coordinator can give while
  // it cannot be reached.
  int64_t coordinator_timeout_ms = 60000;
  // A rank that is frozen in an operation for this long counts as lost; 0:
  // never.
  int64_t frozen_timeout_ms = 10000;
  // Limit of the states that the executor keeps for the job, and how long it
  // keeps them while the job has no process on this node.
  uint64_t state_bytes = uint64_t{64} << 30;
  int64_t state_timeout_ms = 600000;
  // Version of the NCCL with which this executor's GPUs reduce together; 0:
  // none.
  uint32_t nccl_version = 0;
  // Whether NCCL may connect GPUs of several nodes. It sends in the clear.
  bool nccl_between_nodes = true;
  // As in proto::RankGpu.
  uint64_t nccl_host = 0;
  VersionRange versions = kProtocolVersions;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_EXECUTOR_CORE_OPTIONS_H_
