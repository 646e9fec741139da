#include "worker/executor/nccl_environment.h"

#include <cstdlib>

#include "common/wire/job_variables.h"
#include "worker/network/route.h"

namespace maypole::worker {

void SetNcclEnvironment(const std::vector<std::string>& networks) {
  setenv("NCCL_P2P_DIRECT_DISABLE", "1", /*overwrite=*/0);
  std::string interfaces;
  for (const std::string& address : networks) {
    const std::string interface = InterfaceOf(address);
    // "=": NCCL must not take the names as prefixes.
    if (!interface.empty()) {
      interfaces += (interfaces.empty() ? "=" : ",") + interface;
    }
  }
  if (!interfaces.empty()) {
    setenv("NCCL_SOCKET_IFNAME", interfaces.c_str(), /*overwrite=*/0);
  }
  for (const char* const name : session::kBlockingVariables) unsetenv(name);
}

}  // namespace maypole::worker
