// How the node service's directory goes.
//
// Purpose: ranks that come meanwhile (client/bootstrap/bootstrap_directory.h)
// make the directory anew and start the next service in it, which must never
// lose anything to the end of the one before.
//
// Thread contract: functions; not synchronized.
//
// Invariant: a directory is changed only by whoever holds the lock in it, and
// `lock` is never unlinked where it can be found: the directory is renamed
// first.
#ifndef MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_DIRECTORY_H_
#define MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_DIRECTORY_H_

#include <string>

namespace maypole::launcher {

// Nothing happens unless the file `lock` in it is the one that is open (and
// locked) as `lock`.
void RemoveServiceDirectory(const std::string& directory, int lock);

// The same, but the directory and its lock stay: who comes waits.
void EmptyServiceDirectory(const std::string& directory, int lock);

// Removes what services of this user have left beside `directory` that were
// killed together with their guards.
void SweepBeside(const std::string& directory);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_DIRECTORY_H_
