// NodeListener: gets what happens to the processes of a node, of this machine
// (NodeSupervisor) or of another host (RemoteNode).
//
// Thread contract: called by the thread of the node's OutputLoop. A call may
// call the node, but must not destroy it.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_LISTENER_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_LISTENER_H_

#include <sys/types.h>

#include <string>
#include <string_view>

#include "client/launcher/job/supervision.h"

namespace maypole::launcher {

class NodeListener {
 public:
  virtual ~NodeListener() = default;

  virtual void OnRankStarted(int /*rank*/, pid_t) {}
  // stream: 0 is stdout, 1 is stderr.
  virtual void OnRankOutput(int /*rank*/, int /*stream*/, std::string_view) {}
  // A rank of a node whose agent we have started has called init().
  virtual void OnRankJoined(int /*rank*/) {}
  // Part of the result of the function that the rank has run.
  virtual void OnRankResult(int /*rank*/, std::string_view) {}
  virtual void OnRankEnded(int /*rank*/, Exit) {}
  virtual void OnDaemonLog(const std::string& daemon, std::string_view) = 0;
  // A daemon ended without being asked to; `what` is a message about it.
  // returns: another one is started in its place.
  virtual void OnDaemonLost(const std::string& what, bool returns) = 0;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_LISTENER_H_
