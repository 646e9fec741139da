// NodeService: carries out what ServiceCore decides: sockets, daemons, files.
//
// Thread contract: for a process of one thread.
//
// Invariant: when Run() has returned no daemon of it lives, and its directory
// is gone.
#ifndef MAYPOLE_CLIENT_LAUNCHER_SERVICE_SHELL_H_
#define MAYPOLE_CLIENT_LAUNCHER_SERVICE_SHELL_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/launcher/daemons.h"
#include "client/launcher/events.h"
#include "client/launcher/service_core.h"
#include "client/launcher/sink.h"
#include "common/fd.h"
#include "common/status.h"

namespace maypole::launcher {

class NodeService {
 public:
  explicit NodeService(std::string directory);

  // Listens; from now on ranks may connect.
  Status Start();
  void Run();

 private:
  struct Connection {
    Fd socket;
    EventLoop::WatchId watch = 0;
  };

  void Accept();
  void OnMessage(int connection);
  void Drop(int connection);
  void CarryOut(ServiceCore::Actions actions);
  void CarryOut(const ServiceAction& action);
  void Send(int connection, const std::string& text);
  Status StartDaemon(const ServiceAction& action);
  void TellReady();
  void Dial();
  std::string LastLogLine() const;
  void OnDaemonLost(const std::string& what);
  void OnRound();
  bool OthersNeedCoordinator() const;
  void EndDaemons();
  void End(Daemons* daemons);

  const std::string directory_;
  Sink log_{2};
  EventLoop loop_;
  Fd listener_;
  EventLoop::WatchId listener_watch_ = 0;
  std::unique_ptr<Daemons> coordinator_;
  std::unique_ptr<Daemons> agent_;
  std::unique_ptr<ServiceCore> core_;
  int next_connection_ = 1;
  std::map<int, Connection> connections_;
  std::string starting_;  // the daemon that is not ready yet; empty: none
  std::vector<std::string> dialed_;  // addresses to be tried; empty: none
  Time give_up_ = {};                // on starting_ and dialed_
  Time idle_since_ = {};
  bool stopping_ = false;
};

// Resolves names of HOST:PORT to numbers. What leads to this machine itself
// (127.0.1.1, as installers put it in /etc/hosts) is left out, unless it is
// all there is (kLoopbackAddress).
std::vector<std::string> ResolveForOthers(
    const std::vector<std::string>& addresses);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_SERVICE_SHELL_H_
