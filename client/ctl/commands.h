// Commands: runs the commands of maypolectl.
//
// Thread contract: one call at a time.
#ifndef MAYPOLE_CLIENT_CTL_COMMANDS_H_
#define MAYPOLE_CLIENT_CTL_COMMANDS_H_

#include "absl/status/status.h"
#include "client/ctl/options.h"

namespace maypole::ctl {

// Runs the command that the options name, and prints its result to stdout.
absl::Status Run(const CtlOptions& options);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_COMMANDS_H_
