// NodeListener: receives the events of a node's processes, on this machine
// (NodeSupervisor) or on another host (RemoteNode).
//
// Thread contract: called by the thread of the node's OutputLoop. A call may
// call the node, but must not destroy it.
#ifndef MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_LISTENER_H_
#define MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_LISTENER_H_

#include <string>
#include <string_view>

#include "proto/node.pb.h"

namespace maypole::launcher {

class NodeListener {
 public:
  virtual ~NodeListener() = default;

  // A rank has started, written something, called init() or ended; the message
  // has the corresponding kind.
  virtual void OnRank(const FromNode&) {}
  virtual void OnDaemonLog(const std::string& daemon, std::string_view) = 0;
  // A daemon ended without being asked to; `what` is a message about it.
  // returns: another one is started in its place.
  virtual void OnDaemonLost(const std::string& what, bool returns) = 0;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_NODE_NODE_LISTENER_H_
