#include "worker/executor/nccl_environment.h"

#include <cstdlib>

#include "common/wire/job_variables.h"

namespace maypole::worker {

void SetNcclEnvironment() {
  setenv("NCCL_P2P_DIRECT_DISABLE", "1", /*overwrite=*/0);
  for (const char* const name : session::kBlockingVariables) unsetenv(name);
}

}  // namespace maypole::worker
