// Processes: seeing one end, ending all that descend from us, finding the
// program of one that is to be started (common/system/spawn.h does that).
//
// Thread contract: for a process of one thread.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_PROCESS_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>

#include "client/launcher/job/supervision.h"
#include "common/status.h"

namespace maypole::launcher {

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
// One of ours: beside maypolerun, then on PATH.
Status FindDaemon(const std::string& name, std::string* path);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_PROCESS_H_
