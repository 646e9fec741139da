// Processes: reaps children, kills all our descendants, and finds programs to
// start (common/system/spawn.h starts them).
//
// Thread contract: for single-threaded processes.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_PROCESS_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/launcher/job/supervision.h"
#include "common/status.h"

namespace maypole::launcher {

// The signals that end maypolerun or that it passes on to the ranks, except
// those that are ignored now: nohup ignores SIGHUP, a shell SIGINT and SIGQUIT
// for commands in the background.
sigset_t HandledSignals();
// Whether a signal goes to the ranks and has no other effect.
bool IsPassedOn(int signal);

// Sends the signal to the program that runs in the process group `leader`, and
// spares the processes that the program needs to handle it, such as the workers
// of a DataLoader. The program is the leader or, if that is a wrapper (a shell
// that waits for another program) without a handler for the signal, those of
// its children that have one. If there is no handler, and for SIGKILL, all
// processes of the group get the signal.
void SignalProgram(pid_t leader, int signal);

// Reaps the child and returns how it ended. Call it when Child::end is
// readable; returns nullopt if the child has not ended or was reaped already.
std::optional<Exit> Reap(pid_t pid);

// Reaps ended orphans that we inherited as their subreaper. `known`: children
// that are reaped elsewhere.
void ReapOrphans(const std::set<pid_t>& known);

// Kills and reaps all our descendants, except those in `keep` and their
// descendants. Returns those that were still alive `limit` after the last one
// was found or had ended (after kPatientKills such limits, at most).
std::vector<pid_t> KillDescendants(const std::set<pid_t>& keep,
                                   std::chrono::milliseconds limit);
inline constexpr int kPatientKills = 100;

// Finds the path that execvp() would run, or returns the error that it would
// give. Only regular, executable files count.
Status FindProgram(const std::string& name, std::string* path);
// The path of this program; empty if it is not known.
std::filesystem::path OwnPath();
// Finds a program of Maypole: in the directory of maypolerun, then on PATH.
Status FindDaemon(const std::string& name, std::string* path);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_PROCESS_H_
