// ExecutorEnvironment: the environment with which the agent starts an executor.
//
// Purpose: starts from the agent's own environment, and replaces variables by
// those of the job's first rank, such as NCCL_* and CUDA_*
// (common/wire/job_variables.h). So the agent's variables are the defaults for
// all jobs of the node.
//
// An executor of root's agent holds the node's TLS key (sealed_tls.h), which
// the job's user must not learn. So this user must not choose code that the
// executor runs, not even the NCCL of a venv (MAYPOLE_NCCL_LIBRARY). NCCL and
// the CUDA driver load libraries that variables name (NCCL_NET_PLUGIN,
// CUDA_INJECTION64_PATH), and NCCL reads more variables from files. If the
// executor becomes another user, the job's variables whose names suggest that
// are left out; MAYPOLE_NCCL_LIBRARY=none names no code, and stays.
// NCCL_CONF_FILE is then /dev/null, unless the agent sets it, so that NCCL does
// not read ~/.nccl.conf (it still reads /etc/nccl.conf). The agent's own
// MAYPOLE_NCCL_LIBRARY overrides that of all jobs.
//
// Thread contract: a pure function.
//
// Invariant: only variables from `job`, and NCCL_CONF_FILE, differ from the
// agent's.
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
