// FindLeader: which of several coordinators maypolectl must call.
//
// Purpose: asks all coordinators of --coordinator at the same time for their
// role. With one address there is no choice, and it is not asked.
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

// An error if none of them leads; it says what each one has answered.
absl::StatusOr<Found> FindLeader(const CtlOptions& options);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_LEADER_H_
