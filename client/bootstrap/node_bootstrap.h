// BootstrapNode: how ranks that maypolerun has not started find the agent of
// their node.
//
// Purpose: the first rank starts the node service
// (client/launcher/service/service.h) in a private directory that all ranks of
// the node know. Each rank stays connected to the service until it exits, so
// the service notices when the last one has gone, even if it was killed.
//
// Thread contract: one thread at a time may call BootstrapNode(). The
// connection belongs to the process: it outlives shutdown, and the next init
// uses it again.
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_NODE_BOOTSTRAP_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_NODE_BOOTSTRAP_H_

#include <chrono>
#include <string>

#include "client/bootstrap/rank_options.h"
#include "common/status.h"

namespace maypole {

// Fills in options->agent and options->token, for a job of several ranks whose
// options name no agent.
Status BootstrapNode(std::chrono::steady_clock::time_point deadline,
                     RankOptions* options);

// For a forked child: closes the child's copies of the connections.
void LeaveBootstrapInChild();

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_NODE_BOOTSTRAP_H_
