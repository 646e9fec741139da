// What --check-build prints.
//
// Thread contract: a function; it looks for our programs.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_BUILD_INFO_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_BUILD_INFO_H_

#include <string>

namespace maypole::launcher {

// As horovodrun prints it: what this build can do, a line each.
std::string DescribeBuild();

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_BUILD_INFO_H_
