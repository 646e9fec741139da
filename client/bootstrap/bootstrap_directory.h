// The private directory in which the ranks of a node meet: its name, and the
// start of the node service in it.
//
// Thread contract: functions; not synchronized. Nothing forks: the process may
// have threads and fork handlers (common/system/spawn.h).
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_BOOTSTRAP_DIRECTORY_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_BOOTSTRAP_DIRECTORY_H_

#include <string>

#include "common/status.h"
#include "common/system/fd.h"

namespace maypole {

// <base>/maypole-<uid>-<hash of key>. base: MAYPOLE_RUNTIME_DIR, else
// XDG_RUNTIME_DIR if it is ours, else /tmp.
Status BootstrapDirectory(const std::string& key, std::string* path);

// Makes it (0700) if it is not there. An error if it is another's.
Status MakePrivate(const std::string& path);

// *lock is valid if this process is the one to start the service there.
Status TryLock(const std::string& directory, Fd* lock);

// Starts maypolerun --node-service, which takes over the lock. Returns when it
// listens; its error otherwise.
Status StartNodeService(const std::string& directory, Fd lock);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_BOOTSTRAP_DIRECTORY_H_
