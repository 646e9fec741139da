// What an operator reads about a node of a job.
//
// Thread contract: pure.
#ifndef MAYPOLE_COORDINATOR_CORE_JOB_STATUS_H_
#define MAYPOLE_COORDINATOR_CORE_JOB_STATUS_H_

#include "coordinator/core/actions.h"
#include "coordinator/core/coordinator_epoch.h"
#include "coordinator/core/membership/elastic.h"
#include "coordinator/core/membership/gathering.h"
#include "proto/admin.pb.h"

namespace maypole::coordinator {

// Everything except whether the node is connected: its ranks in the epoch
// (null: none runs), and those that wait for the next one.
void FillNodeStatus(Time now, const NodeMember& node,
                    const CoordinatorEpoch* epoch, const Gathering& gathering,
                    const Elastic& elastic, proto::NodeStatus* status);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_JOB_STATUS_H_
