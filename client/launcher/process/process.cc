#include "client/launcher/process/process.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace maypole::launcher {
namespace {

// Fields of /proc/PID/stat.
struct ProcessStat {
  pid_t parent = -1;  // -1: there is no such process
  char state = 0;     // of its first thread
  int threads = 0;    // that have not ended, and the first one
};

ProcessStat StatOf(const char* pid) {
  std::ifstream file("/proc/" + std::string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');
  // "pid (name) state ppid ...": the name may hold spaces and brackets. The
  // number of threads is the 20th.
  const size_t bracket = text.rfind(')');
  ProcessStat stat;
  if (bracket == text.npos ||
      sscanf(text.c_str() + bracket + 1,
             " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
             "%*d %d",
             &stat.state, &stat.parent, &stat.threads) != 3) {
    return {};
  }
  return stat;
}

// True if all threads of the process are dead: until then it cannot be reaped,
// and keeps its children.
bool IsDead(pid_t pid) {
  const ProcessStat stat = StatOf(std::to_string(pid).c_str());
  return stat.parent < 0 ||
         ((stat.state == 'Z' || stat.state == 'X') && stat.threads <= 1);
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return children;
  while (dirent* entry = readdir(proc)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    if (StatOf(entry->d_name).parent == parent) {
      children.push_back(atoi(entry->d_name));
    }
  }
  closedir(proc);
  return children;
}

// Whether the process has a handler for the signal.
bool Handles(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigCgt:")) continue;
    const uint64_t mask = strtoull(line.c_str() + 7, nullptr, 16);
    return (mask >> (signal - 1) & 1) != 0;
  }
  return false;
}

// The path of the process's executable; empty if we may not read it.
std::string ExecutableOf(pid_t pid) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe",
                                       error)
      .string();
}

// Adds `pid` if it has a handler, else the topmost of its descendants in the
// group that have one. A child that runs the same executable is a helper.
void FindHandlers(pid_t pid, pid_t group, int signal,
                  std::vector<pid_t>* found) {
  if (Handles(pid, signal)) return found->push_back(pid);
  const std::string executable = ExecutableOf(pid);
  for (const pid_t child : ChildrenOf(pid)) {
    if (getpgid(child) != group) continue;
    const std::string other = ExecutableOf(child);
    if (other.empty() || other != executable) {
      FindHandlers(child, group, signal, found);
    }
  }
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

sigset_t HandledSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2}) {
    struct sigaction now;
    sigaction(s, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&set, s);
  }
  return set;
}

bool IsPassedOn(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

void SignalProgram(pid_t leader, int signal) {
  std::vector<pid_t> programs;
  if (signal != SIGKILL) FindHandlers(leader, leader, signal, &programs);
  if (programs.empty()) kill(-leader, signal);
  for (const pid_t pid : programs) kill(pid, signal);
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

std::vector<pid_t> KillDescendants(const std::set<pid_t>& keep,
                                   std::chrono::milliseconds limit) {
  auto deadline = std::chrono::steady_clock::now() + limit;
  const auto last_deadline = deadline + (kPatientKills - 1) * limit;
  std::set<pid_t> killed;  // and not dead
  std::set<pid_t> dead;    // and not ours to reap: a debugger's
  while (true) {
    bool moved = false;
    for (const pid_t pid : ChildrenOf(getpid())) {
      if (keep.contains(pid) || dead.contains(pid)) continue;
      moved |= killed.insert(pid).second;
      kill(pid, SIGKILL);
    }
    std::erase_if(killed, [&](pid_t pid) {
      const auto reaped = [pid] { return waitpid(pid, nullptr, WNOHANG) != 0; };
      // It may have died only after the first waitpid().
      const bool gone =
          reaped() || (IsDead(pid) && (reaped() || dead.insert(pid).second));
      moved |= gone;
      return gone;
    });
    const auto now = std::chrono::steady_clock::now();
    // Children of the processes that died are now ours: look again, for as long
    // as there are such.
    if (moved) deadline = std::min(now + limit, last_deadline);
    if (!moved && killed.empty()) return {};
    if (now >= deadline) return {killed.begin(), killed.end()};
    poll(nullptr, 0, 2);
  }
}

Status FindProgram(const std::string& name, std::string* path) {
  if (name.find('/') != std::string::npos) {
    *path = name;
    return CheckExecutable(name);
  }
  const char* variable = getenv("PATH");
  Status denied;
  for (const std::string& directory : std::vector<std::string>(absl::StrSplit(
           variable == nullptr ? "/usr/bin:/bin" : variable, ':'))) {
    *path = (directory.empty() ? "." : directory) + "/" + name;
    Status status = CheckExecutable(*path);
    if (status.ok()) return status;
    // A directory that this user may not search contains nothing for this user.
    if (access(path->c_str(), F_OK) == 0) denied = status;
  }
  if (!denied.ok()) return denied;
  return Status(Code::kNotFound, name + ": not found on PATH");
}

std::filesystem::path OwnPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

Status FindDaemon(const std::string& name, std::string* path) {
  const std::filesystem::path self = OwnPath();
  const std::string beside = self.parent_path() / name;
  if (!self.empty() && FindProgram(beside, path).ok()) return Status();
  if (FindProgram(name, path).ok()) return Status();
  return Status(
      Code::kNotFound,
      name + " is neither beside maypolerun (" + beside +
          ") nor on PATH: build it (deploy/build.sh) or put it there");
}

}  // namespace maypole::launcher
