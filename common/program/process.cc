#include "common/program/process.h"

#include <sys/resource.h>

namespace maypole {

void LeaveNoCore() {
  rlimit limit{};
  // The hard limit stays: whoever hunts a bug can raise it again (prlimit).
  if (getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = 0;
  setrlimit(RLIMIT_CORE, &limit);
}

void RaiseOpenFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace maypole
