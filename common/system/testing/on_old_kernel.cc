// on_old_kernel: runs a program as on an old kernel or in a strict container.
//
//   on_old_kernel [--error=EPERM] [--without=NAME]... PROGRAM [ARGUMENT...]
//
// A seccomp filter, which the program's children inherit, makes system calls
// fail:
//   those that are newer than Linux 4.18 (RHEL 8): from number 424 on, on all
//     architectures. With ENOSYS, as such a kernel, or with --error, as a
//     container whose filter is older than the kernel;
//   clone() with CLONE_PIDFD, with EINVAL: as qemu-user (4.18 ignores the
//   flag); the one that is named by --without, with ENOSYS.
// clone3() always fails with ENOSYS, because only for that error does glibc
// make threads without it.
//
// The program's environment has MAYPOLE_ON_OLD_KERNEL, and MAYPOLE_WITHOUT with
// the last name.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

namespace {

constexpr unsigned kFirstNewCall = 424;  // pidfd_send_signal, of Linux 5.1

const std::map<std::string, int> kErrors = {{"ENOSYS", ENOSYS},
                                            {"EPERM", EPERM}};
const std::map<std::string, unsigned> kCalls = {
    {"eventfd2", SYS_eventfd2},
    {"getrandom", SYS_getrandom},
    {"memfd_create", SYS_memfd_create},
    {"signalfd4", SYS_signalfd4}};
const std::map<std::string, unsigned> kOptions = {
    {"prctl(PR_SET_CHILD_SUBREAPER)", PR_SET_CHILD_SUBREAPER},
    {"prctl(PR_SET_DUMPABLE)", PR_SET_DUMPABLE},
    {"prctl(PR_SET_PDEATHSIG)", PR_SET_PDEATHSIG}};

class Filter {
 public:
  // Calls of this number fail with the error.
  void Refuse(unsigned number, int error) {
    Load(offsetof(seccomp_data, nr));
    Add(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
    Fail(error);
  }
  // If the lower half of the first argument is this value (test: BPF_JEQ), or
  // has one of these bits (BPF_JSET).
  void RefuseArgument(unsigned number, unsigned test, unsigned value,
                      int error) {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    Load(offsetof(seccomp_data, nr));
    Add(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3);
    Load(offsetof(seccomp_data, args));
    Add(BPF_JMP | test | BPF_K, value, 0, 1);
    Fail(error);
  }
  void RefuseFrom(unsigned number, int error) {
    Load(offsetof(seccomp_data, nr));
    Add(BPF_JMP | BPF_JGE | BPF_K, number, 0, 1);
    Fail(error);
  }
  bool Install() {
    Add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    const sock_fprog program = {
        .len = static_cast<unsigned short>(code_.size()),
        .filter = code_.data()};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  }

 private:
  void Add(unsigned code, unsigned k, unsigned char yes, unsigned char no) {
    code_.push_back({static_cast<unsigned short>(code), yes, no, k});
  }
  void Load(size_t offset) {
    Add(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset), 0, 0);
  }
  void Fail(int error) {
    Add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error), 0,
        0);
  }

  std::vector<sock_filter> code_;
};

int Usage() {
  std::string names;
  for (const auto& [name, number] : kCalls) names += " " + name;
  for (const auto& [name, number] : kOptions) names += " " + name;
  fprintf(stderr,
          "usage: on_old_kernel [--error=ENOSYS|EPERM] [--without=NAME]... "
          "PROGRAM [ARGUMENT...]\nnames:%s\n",
          names.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Filter filter;
  int error = ENOSYS;
  int i = 1;
  for (; i < argc && strncmp(argv[i], "--", 2) == 0; ++i) {
    const std::string flag = argv[i];
    const std::string value = flag.substr(flag.find('=') + 1);
    if (flag.starts_with("--error=") && kErrors.contains(value)) {
      error = kErrors.at(value);
    } else if (flag.starts_with("--without=") && kCalls.contains(value)) {
      filter.Refuse(kCalls.at(value), ENOSYS);
      setenv("MAYPOLE_WITHOUT", value.c_str(), 1);
    } else if (flag.starts_with("--without=") && kOptions.contains(value)) {
      filter.RefuseArgument(SYS_prctl, BPF_JEQ, kOptions.at(value), EINVAL);
      setenv("MAYPOLE_WITHOUT", value.c_str(), 1);
    } else {
      return Usage();
    }
  }
  if (i == argc) return Usage();
  filter.Refuse(SYS_clone3, ENOSYS);
  filter.RefuseFrom(kFirstNewCall, error);
  filter.RefuseArgument(SYS_clone, BPF_JSET, CLONE_PIDFD, EINVAL);
  if (!filter.Install()) {
    perror("on_old_kernel: seccomp");
    return 1;
  }
  setenv("MAYPOLE_ON_OLD_KERNEL", "1", 1);
  execv(argv[i], argv + i);
  perror(argv[i]);
  return 1;
}
