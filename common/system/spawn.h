// Spawn: starts a program in a process of its own. The one place that does.
//
// Purpose: the child gets exactly what is asked for: descriptors at fixed
// numbers and no others, an empty signal mask, no handler of ours, its process
// group. When Spawn() returns OK the program runs; else the error says why not,
// and there is no child.
//
//   Child child;
//   Status s = Spawn({.program = path,
//                     .arguments = {"maypole-worker", "--announce_fd=3"},
//                     .descriptors = {{.fd = kDevNull, .number = 0},
//                                     {.fd = pipe.get(), .number = 3}}},
//                    &child);
//
// As posix_spawn() it shares memory with the child until the program runs: no
// fork handlers, no copied page tables. So it may be called in a training
// process with threads, CUDA and 100 GB of memory.
//
// Thread contract: any thread. It waits until the child runs its program, with
// all signals blocked meanwhile. A death signal is sent when the calling
// *thread* ends: call from one that lives as long as the process.
//
// Invariant: nothing but libc in here; libmaypole starts the node service by
// it.
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
  int fd =
      kDevNull;    // of this process; kDevNull: /dev/null, opened by the child
  int number = 0;  // what it is in the child
};

enum class ProcessGroup {
  kInherit,
  kNew,         // of its own
  kJoin,        // SpawnOptions::group
  kNewSession,  // also leaves the terminal
};

struct SpawnOptions {
  std::string program;                 // a path; PATH is not looked at
  std::vector<std::string> arguments;  // with argv[0]
  // NAME=value; none: ours.
  std::optional<std::vector<std::string>> environment;
  // 0, 1 and 2 are ours if they are not named. All others are closed, given
  // that everything in this process is opened with O_CLOEXEC.
  std::vector<SpawnDescriptor> descriptors;
  ProcessGroup process_group = ProcessGroup::kInherit;
  pid_t group = 0;       // for kJoin; if that fails the child stays in ours
  int death_signal = 0;  // when the calling thread ends; 0: none
  // Ignored signals that the child shall get with their default action.
  std::vector<int> default_signals;
  std::optional<rlimit> open_files;  // limit of descriptors; none: ours
  // A script without "#!" is run by /bin/sh, as shells do.
  bool run_scripts = false;
};

struct Child {
  pid_t pid = -1;
  // Readable when it has ended. Invalid on kernels before 5.3.
  Fd pidfd;
};

Status Spawn(const SpawnOptions& options, Child* out);

// Of any process; invalid if there is no such process, or errno says why.
Fd OpenPidFd(pid_t pid);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_SPAWN_H_
