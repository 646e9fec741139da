// Removal of the node service's directory.
//
// Purpose: while a service ends, new ranks may arrive
// (client/bootstrap/bootstrap_directory.h), recreate the directory and start
// the next service in it. The end of the old service must never remove files of
// the next one.
//
// Thread contract: functions; not synchronized.
//
// Invariant: only the holder of the lock in a directory changes the directory.
// The lock file is never unlinked under its usual path; the directory is
// renamed first.
#ifndef MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_DIRECTORY_H_
#define MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_DIRECTORY_H_

#include <string>

namespace maypole::launcher {

// Removes the directory with its contents. lock: the descriptor of its lock
// file, which the caller has locked. If the directory now has another lock
// file, nothing happens.
void RemoveServiceDirectory(const std::string& directory, int lock);

// As RemoveServiceDirectory(), but directory and lock file stay, so new ranks
// wait for the lock.
void EmptyServiceDirectory(const std::string& directory, int lock);

// Removes the directories beside `directory` that services of this user left
// when they were killed together with their guards.
void SweepBeside(const std::string& directory);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_DIRECTORY_H_
