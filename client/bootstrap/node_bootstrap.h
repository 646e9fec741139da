// BootstrapNode: how the ranks of a node that maypolerun has not started come
// to an agent.
//
// Purpose: they meet in a private directory, where the first one starts the
// node service (client/launcher/service/service.h), and each stays connected to
// it for its life: so the service sees when the last one has gone, however it
// went.
//
// Thread contract: BootstrapNode() by one thread at a time. The connection
// belongs to the process: it outlives shutdown, so that the next init finds it.
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_NODE_BOOTSTRAP_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_NODE_BOOTSTRAP_H_

#include <chrono>
#include <string>

#include "client/bootstrap/rank_options.h"
#include "common/status.h"

namespace maypole {

// Fills in options->agent and options->token. The job has several ranks and
// names no agent.
Status BootstrapNode(std::chrono::steady_clock::time_point deadline,
                     RankOptions* options);

// In a forked child: it takes no part in the bootstrap.
void LeaveBootstrapInChild();

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_NODE_BOOTSTRAP_H_
