#include "worker/executor/become_user.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"

namespace maypole::worker {

std::vector<gid_t> LookUpGroups(uid_t uid, gid_t gid) {
  char buffer[16384];
  passwd entry;
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, buffer, sizeof(buffer), &found) != 0 ||
      found == nullptr) {
    return {gid};
  }
  int count = 0;
  getgrouplist(found->pw_name, gid, nullptr, &count);
  std::vector<gid_t> groups(static_cast<size_t>(count));
  if (getgrouplist(found->pw_name, gid, groups.data(), &count) < 0) {
    return {gid};
  }
  groups.resize(static_cast<size_t>(count));
  return groups;
}

absl::StatusOr<std::vector<gid_t>> GroupsWithin(
    std::chrono::milliseconds timeout, uid_t uid, gid_t gid,
    const GroupLookup& look_up) {
  std::promise<std::vector<gid_t>> promise;
  std::future<std::vector<gid_t>> groups = promise.get_future();
  // The thread may outlive this call, so it owns everything that it uses.
  std::thread([promise = std::move(promise), look_up, uid, gid]() mutable {
    promise.set_value(look_up(uid, gid));
  }).detach();
  if (groups.wait_for(timeout) == std::future_status::ready) {
    return groups.get();
  }
  return absl::UnavailableError(absl::StrCat(
      "the groups of uid ", uid, " could not be looked up in ",
      timeout.count() / 1000.0, " s: the node's directory service (NSS: LDAP, ",
      "SSSD, NIS) does not answer; `getent initgroups` with the user's name ",
      "shows whether it does"));
}

absl::Status BecomeUser(uid_t uid, gid_t gid,
                        std::chrono::milliseconds timeout) {
  const absl::StatusOr<std::vector<gid_t>> groups =
      GroupsWithin(timeout, uid, gid);
  if (!groups.ok()) return groups.status();
  if (setgroups(groups->size(), groups->data()) != 0 ||
      setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0) {
    return ToAbsl(
        ErrnoStatus(errno, absl::StrCat("the executor cannot become uid ", uid,
                                        " with gid ", gid)));
  }
  return absl::OkStatus();
}

}  // namespace maypole::worker
