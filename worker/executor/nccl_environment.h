// SetNcclEnvironment: sets what NCCL must know about the executor's memory and
// network.
//
// NCCL reads its settings from the environment, once.
//
// Thread contract: as setenv(): before the process has other threads.
#ifndef MAYPOLE_WORKER_EXECUTOR_NCCL_ENVIRONMENT_H_
#define MAYPOLE_WORKER_EXECUTOR_NCCL_ENVIRONMENT_H_

#include <string>
#include <vector>

namespace maypole::worker {

// NCCL_P2P_DIRECT_DISABLE=1: between GPUs of one process, NCCL would read and
// write the tensors of other GPUs in place, but only its own GPU can access
// ranks' memory that was imported (cuMemMap). With the variable, NCCL copies
// through its own buffers, as between processes. A value that the user has set
// stays. Variables that make calls wait are unset
// (common/wire/job_variables.h).
//
// NCCL_SOCKET_IFNAME is set if `networks` (--network) has addresses of
// interfaces of this machine: NCCL's ports authenticate nobody, so they are
// opened on these interfaces only, instead of on all.
void SetNcclEnvironment(const std::vector<std::string>& networks);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_NCCL_ENVIRONMENT_H_
