// SetNcclEnvironment: what NCCL must know about the executor's memory and
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
// write the tensors of other GPUs in place, but ranks' memory that was imported
// (cuMemMap) can be accessed by its own GPU only. Then NCCL copies through its
// own buffers, as between processes. What the user has set stays. Variables
// that make calls wait are unset (common/wire/job_variables.h).
//
// NCCL_SOCKET_IFNAME, if `networks` (--network) has addresses of interfaces of
// this machine: NCCL's ports authenticate nobody, so they are open on these
// interfaces only, instead of on all of them.
void SetNcclEnvironment(const std::vector<std::string>& networks);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_NCCL_ENVIRONMENT_H_
