// The text that maypolerun --check-build prints.
//
// Thread contract: a function; it searches for the daemons and ssh.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_BUILD_INFO_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_BUILD_INFO_H_

#include <string>

namespace maypole::launcher {

// One line per feature, in the format of horovodrun --check-build.
std::string DescribeBuild();

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_BUILD_INFO_H_
