// Commands: what each of maypolectl's words does.
//
// Thread contract: one at a time.
#ifndef MAYPOLE_CLIENT_CTL_COMMANDS_H_
#define MAYPOLE_CLIENT_CTL_COMMANDS_H_

#include "absl/status/status.h"
#include "client/ctl/options.h"

namespace maypole::ctl {

// Prints to stdout.
absl::Status Run(const CtlOptions& options);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_COMMANDS_H_
