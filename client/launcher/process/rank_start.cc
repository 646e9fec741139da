#include "client/launcher/process/rank_start.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "common/system/fd.h"
#include "common/wire/unix_socket.h"

namespace maypole::launcher {

std::vector<std::string> EnvironmentWith(const Variables& variables) {
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) {
    std::string entry = *e;
    std::string name = entry.substr(0, entry.find('='));
    bool replaced = std::any_of(variables.begin(), variables.end(),
                                [&](const auto& v) { return v.first == name; });
    if (!replaced && !IsOfAJob(name)) environment.push_back(entry);
  }
  for (const auto& [name, value] : variables) {
    environment.push_back(name + "=" + value);
  }
  return environment;
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
