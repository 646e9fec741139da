// The private directory through which the ranks of a node find each other:
// naming and creating it, and starting the node service in it.
//
// Thread contract: functions; not synchronized. None of them calls fork(),
// because the process may have threads and fork handlers
// (common/system/spawn.h).
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_BOOTSTRAP_DIRECTORY_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_BOOTSTRAP_DIRECTORY_H_

#include <chrono>
#include <string>

#include "common/status.h"
#include "common/system/fd.h"

namespace maypole {

// *path becomes <base>/maypole-<uid>-<hash of key>. base is
// MAYPOLE_RUNTIME_DIR, else XDG_RUNTIME_DIR if this user owns it, else /tmp.
Status BootstrapDirectory(const std::string& key, std::string* path);

// Creates the directory (mode 0700) if it does not exist. Fails if it belongs
// to another user or others may access it.
Status MakePrivate(const std::string& path);

// On success, *lock is valid if this process must start the service there, and
// invalid if another process holds the lock.
Status TryLock(const std::string& directory, Fd* lock);

// Starts maypolerun --node-service, which takes over the lock. Returns when the
// service listens, with the error that it reports, or at the deadline.
Status StartNodeService(const std::string& directory, Fd lock,
                        std::chrono::steady_clock::time_point deadline);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_BOOTSTRAP_DIRECTORY_H_
