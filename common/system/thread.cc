#include "common/system/thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "common/system/resource_limits.h"

namespace maypole {

Status StartThread(std::function<void()> body, std::thread* thread) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    *thread = std::thread(std::move(body));
  } catch (const std::system_error& e) {
    status = ResourceStatus(e.code().value(), Needs::kThread,
                            "cannot start a thread");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace maypole
