// Processes: starting one with exactly the descriptors it shall have, seeing
// it end, and ending all that descend from us.
//
// Thread contract: for a process of one thread (Spawn forks, and the parent
// death signal follows the thread that forked).
//
// Invariant: a process started here dies with us, whatever kills us.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_H_

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/launcher/supervision.h"
#include "common/fd.h"
#include "common/status.h"

namespace maypole::launcher {

struct SpawnSpec {
  std::string program;  // a path; argv[0] may differ
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // NAME=value
  int stdin_fd = -1;                     // -1: /dev/null
  int stdout_fd = 1;
  int stderr_fd = 2;
  int extra_fd = -1;  // becomes descriptor 3; -1: none
  pid_t group = 0;    // process group to join; 0: a new one of its own
  int death_signal = 0;
  rlimit files = {};  // the limit of descriptors it shall have
};

struct Child {
  pid_t pid = -1;
  Fd pidfd;  // readable when it has ended
};

// Returns after the program runs; an error if it could not be run.
Status Spawn(const SpawnSpec& spec, Child* out);

// The signals that end maypolerun. SIGHUP is not among them if it is ignored
// (nohup); SIGINT is, although shells ignore it for background commands:
// ranks could not be interrupted at all otherwise.
sigset_t EndingSignals();

// How the child ended, once its pidfd is readable; takes it off the system.
std::optional<Exit> Reap(pid_t pid);

// Reaps ended processes that were left to us (we are their subreaper) and are
// not in known.
void ReapOrphans(const std::set<pid_t>& known);

// Kills and reaps all our descendants, except keep and theirs. False: some
// still lived after limit.
bool KillDescendants(const std::set<pid_t>& keep,
                     std::chrono::milliseconds limit);

// The path execvp would run, or the error it would give. Only regular,
// executable files count.
Status FindProgram(const std::string& name, std::string* path);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_H_
