// BecomeUser: switches an executor that root's agent has started to its job's
// user.
//
// Purpose: sets uid, gid and the user's groups. The groups come from the
// system's directory service (NSS: files, LDAP, SSSD, NIS), which may hang.
// Therefore the executor looks them up, never the agent: a directory server
// that does not answer delays only the jobs of the users concerned, each for a
// bounded time.
//
// Thread contract: call it from the main thread, before other threads exist.
// After a timeout a thread still waits for the directory service; the process
// must then end by _exit(), which does not wait for threads.
#ifndef MAYPOLE_WORKER_EXECUTOR_BECOME_USER_H_
#define MAYPOLE_WORKER_EXECUTOR_BECOME_USER_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace maypole::worker {

// Returns the user's groups; only `gid` for a uid without an account.
std::vector<gid_t> LookUpGroups(uid_t uid, gid_t gid);

// Tests use a look-up that hangs.
using GroupLookup = std::function<std::vector<gid_t>(uid_t, gid_t)>;

// Returns kUnavailable if there is no answer within `timeout`.
absl::StatusOr<std::vector<gid_t>> GroupsWithin(
    std::chrono::milliseconds timeout, uid_t uid, gid_t gid,
    const GroupLookup& look_up = LookUpGroups);

absl::Status BecomeUser(uid_t uid, gid_t gid,
                        std::chrono::milliseconds timeout);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_BECOME_USER_H_
