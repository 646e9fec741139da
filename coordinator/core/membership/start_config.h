// An epoch's config: the coordinator's, overridden by what the ranks'
// environment sets.
//
// Thread contract: pure.
#ifndef MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_START_CONFIG_H_
#define MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_START_CONFIG_H_

#include <vector>

#include "coordinator/core/actions.h"
#include "coordinator/core/membership/gathering.h"

namespace maypole::coordinator {

// The members' ranks may set checksums, the fusion threshold and the stall
// times. `log` gets a warning where the ranks' values disagree.
Config StartConfig(Config config, const std::vector<NodeMember>& members,
                   JobLog* log);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_MEMBERSHIP_START_CONFIG_H_
