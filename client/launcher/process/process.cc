#include "client/launcher/process/process.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <vector>

namespace maypole::launcher {
namespace {

// The process id of the parent of `pid`; -1 if `pid` is gone.
pid_t ParentOf(const char* pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%s/stat", pid);
  FILE* file = fopen(path, "re");
  if (file == nullptr) return -1;
  char text[512] = {};
  size_t n = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[n] = 0;
  // "pid (name) state ppid": the name may hold spaces and brackets.
  const char* bracket = strrchr(text, ')');
  int parent = -1;
  char state;
  if (bracket == nullptr || sscanf(bracket + 1, " %c %d", &state, &parent) != 2)
    return -1;
  return parent;
}

std::vector<pid_t> OwnChildren() {
  std::vector<pid_t> children;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return children;
  while (dirent* entry = readdir(proc)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    if (ParentOf(entry->d_name) == getpid()) {
      children.push_back(atoi(entry->d_name));
    }
  }
  closedir(proc);
  return children;
}

Status CheckExecutable(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode) || access(path.c_str(), X_OK) != 0) {
    return ErrnoStatus(EACCES, path);
  }
  return Status();
}

}  // namespace

sigset_t EndingSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGINT, SIGTERM, SIGQUIT}) sigaddset(&set, s);
  struct sigaction hangup;
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

std::optional<Exit> Reap(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, WNOHANG) != pid) return std::nullopt;
  if (WIFSIGNALED(status)) {
    return Exit{.signaled = true, .value = WTERMSIG(status)};
  }
  return Exit{.signaled = false, .value = WEXITSTATUS(status)};
}

void ReapOrphans(const std::set<pid_t>& known) {
  while (true) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return;
    if (info.si_pid == 0 || known.contains(info.si_pid)) return;
    waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

bool KillDescendants(const std::set<pid_t>& keep,
                     std::chrono::milliseconds limit) {
  auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    bool any = false;
    for (pid_t pid : OwnChildren()) {
      if (keep.contains(pid)) continue;
      any = true;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, WNOHANG);
    }
    // Children of the processes that died are now ours: look again.
    if (!any) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    poll(nullptr, 0, 2);
  }
}

Status FindProgram(const std::string& name, std::string* path) {
  if (name.find('/') != std::string::npos) {
    *path = name;
    return CheckExecutable(name);
  }
  const char* variable = getenv("PATH");
  std::string rest = variable == nullptr ? "/usr/bin:/bin" : variable;
  Status denied;
  while (true) {
    size_t colon = rest.find(':');
    std::string directory = rest.substr(0, colon);
    *path = (directory.empty() ? "." : directory) + "/" + name;
    Status status = CheckExecutable(*path);
    if (status.ok()) return status;
    if (status.code() == Code::kPermissionDenied) denied = status;
    if (colon == std::string::npos) break;
    rest.erase(0, colon + 1);
  }
  if (!denied.ok()) return denied;
  return Status(Code::kNotFound, name + ": not found on PATH");
}

Status FindDaemon(const std::string& name, std::string* path) {
  std::error_code error;
  auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string beside = (self.parent_path() / name).string();
  if (!error && FindProgram(beside, path).ok()) return Status();
  if (FindProgram(name, path).ok()) return Status();
  return Status(
      Code::kNotFound,
      name + " is neither beside maypolerun (" + beside +
          ") nor on PATH: build it (deploy/build.sh) or put it there");
}

}  // namespace maypole::launcher
