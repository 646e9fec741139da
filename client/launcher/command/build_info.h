// The text that maypolerun --check-build prints.
//
// Thread contract: a function; it searches for the daemons, ssh, python3 and
// its frameworks.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_BUILD_INFO_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_BUILD_INFO_H_

#include <string>

namespace maypole::launcher {

// One line per feature, in the format of horovodrun --check-build. Sets
// *missing to one line about what HOROVOD_WITH_* wants and is not there; empty:
// nothing.
std::string DescribeBuild(std::string* missing);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_BUILD_INFO_H_
