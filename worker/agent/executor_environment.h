// ExecutorEnvironment: the environment with which the agent starts an executor.
//
// Purpose: the agent's own environment, in which the variables NCCL_* and
// CUDA_* of the job's first rank (common/wire/job_variables.h) replace the
// agent's. So the agent's are defaults for all jobs of the node.
//
// An executor of root's agent knows the cluster secret, which its user must not
// learn, so the user must not choose code that it runs: not the NCCL of a venv
// (MAYPOLE_NCCL_LIBRARY), either. NCCL and the CUDA driver load libraries that
// variables name (NCCL_NET_PLUGIN, CUDA_INJECTION64_PATH), and NCCL reads more
// variables from files. If the executor becomes another user, variables whose
// names suggest that are left out, unless the agent's own environment has them
// (MAYPOLE_NCCL_LIBRARY=none names no code, and stays); and NCCL_CONF_FILE is
// /dev/null, so that NCCL does not read ~/.nccl.conf (it still reads
// /etc/nccl.conf). The agent's own MAYPOLE_NCCL_LIBRARY counts for all jobs.
//
// Thread contract: a pure function.
//
// Invariant: only variables from `job` differ from the agent's, and
// NCCL_CONF_FILE.
#ifndef MAYPOLE_WORKER_AGENT_EXECUTOR_ENVIRONMENT_H_
#define MAYPOLE_WORKER_AGENT_EXECUTOR_ENVIRONMENT_H_

#include <cstddef>
#include <string>
#include <vector>

namespace maypole::worker {

inline constexpr size_t kMaxLeftOut = 16;

struct ExecutorEnvironment {
  std::vector<std::string> variables;  // NAME=value
  std::vector<std::string> left_out;   // names, at most kMaxLeftOut
};

// agent: like environ. job: NAME=value, checked by session::ParseHello().
ExecutorEnvironment MakeExecutorEnvironment(const char* const* agent,
                                            const std::vector<std::string>& job,
                                            bool other_user);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_AGENT_EXECUTOR_ENVIRONMENT_H_
