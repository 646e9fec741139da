#include "worker/executor/nccl_environment.h"

#include <ifaddrs.h>

#include <cstdlib>

#include "common/address.h"
#include "common/wire/job_variables.h"

namespace maypole::worker {
namespace {

// The interface with this address; empty if there is none.
std::string InterfaceOf(const std::string& address) {
  const Addresses wanted = Resolve(address, 0, AI_NUMERICHOST);
  ifaddrs* all = nullptr;
  if (wanted == nullptr || getifaddrs(&all) != 0) return "";
  std::string name;
  for (const ifaddrs* i = all; i != nullptr && name.empty(); i = i->ifa_next) {
    if (NumericHost(i->ifa_addr) == NumericHost(wanted->ai_addr)) {
      name = i->ifa_name;
    }
  }
  freeifaddrs(all);
  return name;
}

}  // namespace

void SetNcclEnvironment(const std::string& network) {
  setenv("NCCL_P2P_DIRECT_DISABLE", "1", /*overwrite=*/0);
  if (const std::string interface = InterfaceOf(network); !interface.empty()) {
    // "=": the name is not a prefix.
    setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), /*overwrite=*/0);
  }
  for (const char* const name : session::kBlockingVariables) unsetenv(name);
}

}  // namespace maypole::worker
