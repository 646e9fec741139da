// Spawn: starts a program in a new process. All of Maypole's C++ code that
// starts programs does it here.
//
// Purpose: the child gets exactly what the caller asks for: descriptors at
// fixed numbers and no others, an empty signal mask, none of the parent's
// signal handlers, its process group. When Spawn() returns OK, the program is
// running; otherwise the error says why not, and there is no child.
//
//   Child child;
//   Status s = Spawn({.program = path,
//                     .arguments = {"maypole-worker", "--announce_fd=3"},
//                     .descriptors = {{.fd = kDevNull, .number = 0},
//                                     {.fd = pipe.get(), .number = 3}}},
//                    &child);
//
// Like posix_spawn() it shares memory with the child until the program runs:
// no fork handlers run, no page tables are copied. So a training process with
// threads, CUDA and 100 GB of memory may call it.
//
// Thread contract: any thread. The call blocks, with all signals blocked, until
// the child runs its program. The death signal is sent when the calling
// *thread* ends: call from a thread that lives as long as the process.
//
// Invariant: uses nothing but libc, because libmaypole starts the node service
// with it.
#ifndef MAYPOLE_COMMON_SYSTEM_SPAWN_H_
#define MAYPOLE_COMMON_SYSTEM_SPAWN_H_

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/system/fd.h"

namespace maypole {

inline constexpr int kDevNull = -1;

struct SpawnDescriptor {
  // A descriptor of this process; kDevNull: the child opens /dev/null.
  int fd = kDevNull;
  int number = 0;  // its number in the child
};

enum class ProcessGroup {
  kInherit,
  kNew,         // a new group
  kJoin,        // SpawnOptions::group
  kNewSession,  // also leaves the terminal
};

struct SpawnOptions {
  std::string program;                 // a path; PATH is not searched
  std::vector<std::string> arguments;  // argv[0] included
  // NAME=value; nullopt: the parent's environment.
  std::optional<std::vector<std::string>> environment;
  // The child's descriptors. 0, 1 and 2 are inherited if not listed. All others
  // are closed, provided that this process opens everything with O_CLOEXEC.
  std::vector<SpawnDescriptor> descriptors;
  ProcessGroup process_group = ProcessGroup::kInherit;
  // For kJoin. If joining fails, the child stays in the parent's group.
  pid_t group = 0;
  int death_signal = 0;  // sent when the calling thread ends; 0: none
  // Signals that this process ignores and that must have their default action
  // in the child.
  std::vector<int> default_signals;
  std::optional<rlimit> open_files;  // limit of descriptors; nullopt: inherited
  // Run a script without "#!" by /bin/sh, as shells do.
  bool run_scripts = false;
  // Child::end is wanted. On kernels without pidfds that takes a thread.
  bool watched = true;
};

struct Child {
  pid_t pid = -1;
  // Readable when the process has ended (process_end.h), until it is reaped.
  // Invalid if the process is not watched.
  Fd end;
};

Status Spawn(const SpawnOptions& options, Child* out);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_SPAWN_H_
