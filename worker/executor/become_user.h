// BecomeUser: an executor that root's agent has started becomes its job's user.
//
// Purpose: uid, gid and the groups of that user. The groups come from the
// system's directory service (NSS: files, LDAP, SSSD, NIS), which may hang. So
// it is asked here, by the executor, and never by the agent: a directory server
// that does not answer holds up the jobs of the users it is asked about, each
// for a bounded time, and nobody else.
//
// Thread contract: from the main thread, before there are others. After a
// timeout one of ours still waits for the directory service: such a process is
// to end by _exit(), which waits for nobody.
#ifndef MAYPOLE_WORKER_EXECUTOR_BECOME_USER_H_
#define MAYPOLE_WORKER_EXECUTOR_BECOME_USER_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace maypole::worker {

// The user's groups; just `gid` for a uid without an account.
std::vector<gid_t> LookUpGroups(uid_t uid, gid_t gid);

// The seam: tests put in one that hangs.
using GroupLookup = std::function<std::vector<gid_t>(uid_t, gid_t)>;

// kUnavailable: no answer within `timeout`.
absl::StatusOr<std::vector<gid_t>> GroupsWithin(
    std::chrono::milliseconds timeout, uid_t uid, gid_t gid,
    const GroupLookup& look_up = LookUpGroups);

absl::Status BecomeUser(uid_t uid, gid_t gid,
                        std::chrono::milliseconds timeout);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_BECOME_USER_H_
