// NodeService: performs the actions of ServiceCore. It serves the socket,
// writes files, and runs daemons through a NodeSupervisor.
//
// Thread contract: for single-threaded processes.
//
// Invariant: when Run() returns, none of its daemons is alive, and its
// directory is removed.
#ifndef MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_SHELL_H_
#define MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_SHELL_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/launcher/node/node_supervisor.h"
#include "client/launcher/output/output_loop.h"
#include "client/launcher/output/output_stream.h"
#include "client/launcher/output/sink.h"
#include "client/launcher/service/service_core.h"
#include "common/status.h"

namespace maypole::launcher {

class NodeService : private NodeListener {
 public:
  explicit NodeService(std::string directory);

  // Starts listening: from now on ranks can connect.
  Status Start();
  // Serves the ranks; returns when all have gone and everything is cleaned up.
  void Run();

 private:
  void OnDaemonLog(const std::string& daemon, std::string_view bytes) override;
  void OnDaemonLost(const std::string& what, bool returns) override;
  void Accept();
  void OnMessage(int connection);
  void Perform(ServiceCore::Actions actions);
  void Perform(const ServiceAction& action);
  void Send(int connection, const std::string& text);
  Status StartDaemon(const ServiceAction& action);
  void ReportReady();
  void Dial();
  void FailForDaemon(const std::string& what);
  void OnRound();
  bool OthersNeedCoordinator() const;
  void EndDaemons();
  void End(const std::string& daemon);

  const std::string directory_;
  OutputLoop loop_;
  Sink log_{2};
  std::map<std::string, OutputStream> logs_;  // of daemons, in log_
  WatchedFd listener_;
  NodeSupervisor node_;
  std::unique_ptr<ServiceCore> core_;
  int next_connection_ = 1;
  std::map<int, WatchedFd> connections_;
  std::string starting_;  // the daemon that is not ready yet; empty: none
  std::vector<std::string> dialed_;  // addresses to try; empty: none
  Time give_up_ = {};                // the deadline of starting_ and dialed_
  Time idle_since_ = {};
  bool stopping_ = false;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_SERVICE_SERVICE_SHELL_H_
