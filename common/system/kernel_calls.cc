#include "common/system/kernel_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/utsname.h>

#include <cstring>
#include <string>

#include "common/system/fd.h"
#include "common/system/process_end.h"

namespace maypole {
namespace {

// errno of a call that has returned `result`, if the kernel refuses it.
int Refused(int result) { return result < 0 && IsRefusal(errno) ? errno : 0; }

// For a call that makes a descriptor, which is closed again.
int RefusedFd(int fd) {
  const Fd made(fd);
  return Refused(fd);
}

int RefusedSeals() {
  const Fd memory(
      memfd_create("maypole-check", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return 0;  // reported as memfd_create
  return Refused(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
}

int RefusedSignals() {
  sigset_t none;
  sigemptyset(&none);
  return RefusedFd(signalfd(-1, &none, SFD_CLOEXEC | SFD_NONBLOCK));
}

int RefusedDeathSignal() {
  int signal = 0;
  if (prctl(PR_GET_PDEATHSIG, &signal) != 0) return Refused(-1);
  return Refused(prctl(PR_SET_PDEATHSIG, signal));
}

int RefusedRandom() {
  char byte;
  return Refused(static_cast<int>(getrandom(&byte, 1, GRND_NONBLOCK)));
}

struct Call {
  const char* name;
  const char* since;  // the version of Linux
  int error;          // 0: it is there
};

}  // namespace

Status CheckKernelCalls() {
  const Call calls[] = {
      {"epoll_create1", "2.6.27", RefusedFd(epoll_create1(EPOLL_CLOEXEC))},
      {"eventfd2", "2.6.27", RefusedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))},
      {"signalfd4", "2.6.27", RefusedSignals()},
      {"memfd_create", "3.17",
       RefusedFd(
           memfd_create("maypole-check", MFD_CLOEXEC | MFD_ALLOW_SEALING))},
      {"fcntl(F_ADD_SEALS)", "3.17", RefusedSeals()},
      {"getrandom", "3.17", RefusedRandom()},
      {"prctl(PR_SET_PDEATHSIG)", "2.2", RefusedDeathSignal()}};
  for (const Call& call : calls) {
    if (call.error == 0) continue;
    utsname kernel = {};
    uname(&kernel);
    return Status(
        Code::kFailedPrecondition,
        std::string("the kernel here (") + kernel.sysname + " " +
            kernel.release + ") refuses " + call.name + ": " +
            strerror(call.error) + "; Maypole cannot run without it. Linux " +
            call.since +
            " or newer has it; in a container or sandbox, allow the call");
  }
  return Status();
}

}  // namespace maypole
