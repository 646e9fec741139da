// maypolectl: see --help, or options.cc.
//
// Thread contract: call it from the main thread, before any other thread
// exists.
#ifndef MAYPOLE_CTL_PROGRAM_H_
#define MAYPOLE_CTL_PROGRAM_H_

#include <string>
#include <vector>

namespace maypole::ctl {

// `args` does not include the program's name. Returns the exit status.
int Main(const std::vector<std::string>& args);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CTL_PROGRAM_H_
