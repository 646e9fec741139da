// FindLeader: finds the one of several coordinators that maypolectl must call.
//
// Purpose: asks all coordinators of --coordinator at the same time for their
// role. A single coordinator is not asked: there is no choice.
//
// Thread contract: a function; it blocks for up to --timeout.
#ifndef MAYPOLE_CLIENT_CTL_LEADER_H_
#define MAYPOLE_CLIENT_CTL_LEADER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/connection.h"
#include "client/ctl/options.h"
#include "client/ctl/views.h"

namespace maypole::ctl {

struct Found {
  std::unique_ptr<CoordinatorClient> leader;
  std::vector<OtherCoordinator> others;
};

// An error if none of them leads; it says what each of them answered.
absl::StatusOr<Found> FindLeader(const CtlOptions& options);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_LEADER_H_
