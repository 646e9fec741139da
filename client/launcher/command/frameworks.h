// Which frameworks the ranks' python3 has.
//
// Purpose: for maypolerun --check-build. This program is not compiled against
// them, so what counts is what python3 finds when the job runs, and which of
// our libraries for them are there.
//
// Thread contract: a function; it runs python3, which imports none of them.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORKS_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORKS_H_

#include "client/launcher/command/framework_rows.h"

namespace maypole::launcher {

Frameworks FindFrameworks();

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORKS_H_
