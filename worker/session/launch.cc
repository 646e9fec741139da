#include "worker/session/launch.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"

namespace maypole::worker {
namespace {

constexpr char kSelf[] = "/proc/self/exe";
constexpr int kCannotStart = 127;

// The user's groups; just `gid` for a uid without an account.
std::vector<gid_t> GroupsOf(uid_t uid, gid_t gid) {
  char buffer[16384];
  passwd entry;
  passwd* found = nullptr;
  std::vector<gid_t> groups = {gid};
  if (getpwuid_r(uid, &entry, buffer, sizeof(buffer), &found) != 0 ||
      found == nullptr) {
    return groups;
  }
  int count = 0;
  getgrouplist(found->pw_name, gid, nullptr, &count);
  groups.resize(static_cast<size_t>(count));
  if (getgrouplist(found->pw_name, gid, groups.data(), &count) < 0) {
    return {gid};
  }
  groups.resize(static_cast<size_t>(count));
  return groups;
}

// In the child. False: errno tells.
bool BecomeUser(uid_t uid, gid_t gid, const std::vector<gid_t>& groups) {
  return setgroups(groups.size(), groups.data()) == 0 &&
         setresgid(gid, gid, gid) == 0 && setresuid(uid, uid, uid) == 0;
}

bool KeepOpen(int fd) { return fcntl(fd, F_SETFD, 0) == 0; }

}  // namespace

absl::StatusOr<pid_t> LaunchExecutor(const LaunchOptions& options) {
  std::vector<std::string> arguments = {
      "maypole-worker", "--executor",
      absl::StrCat("--control_fd=", options.control_fd),
      absl::StrCat("--stats_fd=", options.stats_fd)};
  if (options.tls_fd >= 0) {
    arguments.push_back(absl::StrCat("--tls_fd=", options.tls_fd));
  }
  arguments.insert(arguments.end(), options.arguments.begin(),
                   options.arguments.end());
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  const bool change_user = geteuid() == 0 && options.uid != 0;
  std::vector<gid_t> groups;
  if (change_user) groups = GroupsOf(options.uid, options.gid);

  const pid_t pid = fork();
  if (pid < 0) return ToAbsl(ErrnoStatus(errno, "cannot start an executor"));
  if (pid > 0) return pid;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (KeepOpen(options.control_fd) && KeepOpen(options.stats_fd) &&
      (options.tls_fd < 0 || KeepOpen(options.tls_fd)) &&
      (!change_user || BecomeUser(options.uid, options.gid, groups))) {
    execv(kSelf, argv.data());
  }
  _exit(kCannotStart);
}

}  // namespace maypole::worker
