#include "client/launcher/process/rank_start.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "common/finished_file.h"
#include "common/system/fd.h"
#include "common/wire/unix_socket.h"

namespace maypole::launcher {
namespace {

// If we run inside another job, these are that job's.
bool IsOfOtherJob(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "MAYPOLE_AGENT",      "MAYPOLE_RANK",       "MAYPOLE_SIZE",
      "MAYPOLE_LOCAL_RANK", "MAYPOLE_LOCAL_SIZE", "MAYPOLE_CROSS_RANK",
      "MAYPOLE_CROSS_SIZE", "MAYPOLE_ELASTIC",    "MAYPOLE_MIN_SIZE",
      "MAYPOLE_MAX_SIZE",   "MAYPOLE_FUNCTION",   "MAYPOLE_RESULT_FD",
      kFinishedFileVariable};
  return std::find(std::begin(kNames), std::end(kNames), name) !=
         std::end(kNames);
}

// Our environment with these variables replaced.
std::vector<std::string> EnvironmentWith(const Variables& variables) {
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) {
    std::string entry = *e;
    std::string name = entry.substr(0, entry.find('='));
    bool replaced = std::any_of(variables.begin(), variables.end(),
                                [&](const auto& v) { return v.first == name; });
    if (!replaced && !IsOfOtherJob(name)) environment.push_back(entry);
  }
  for (const auto& [name, value] : variables) {
    environment.push_back(name + "=" + value);
  }
  return environment;
}

}  // namespace

std::vector<std::string> RankEnvironment(const JobEnvironment& job,
                                         const Place& place) {
  return EnvironmentWith(RankVariables(job, place, [](const std::string& name) {
    return getenv(name.c_str()) != nullptr;
  }));
}

std::vector<std::string> DefaultAgentSockets() {
  std::vector<std::string> sockets = {"/run/maypole/agent.sock"};
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') {
    sockets.push_back(std::string(runtime) + "/maypole-agent.sock");
  }
  return sockets;
}

Status FindRunningAgent(std::string* socket) {
  std::vector<std::string> candidates = {*socket};
  if (socket->empty()) candidates = DefaultAgentSockets();
  std::string tried;
  for (const std::string& candidate : candidates) {
    Fd fd;
    Status status = ConnectUnix(candidate, &fd);
    if (status.ok()) {
      *socket = candidate;
      return Status();
    }
    tried += (tried.empty() ? "" : "; ") + status.message();
  }
  return Status(Code::kUnavailable,
                "no maypole-worker can be reached (" + tried +
                    "): start it on this host (maypole-worker "
                    "--coordinator=HOST:PORT), or name its socket "
                    "(--agent=SOCKET)");
}

}  // namespace maypole::launcher
