// maypole-coordinator: reads its flags, serves, and ends on SIGTERM or SIGINT.
//
// Thread contract: call it from the main thread, before any other thread
// exists.
#ifndef MAYPOLE_COORDINATOR_PROGRAM_H_
#define MAYPOLE_COORDINATOR_PROGRAM_H_

#include <string>
#include <vector>

namespace maypole::coordinator {

// `args` does not include the program's name. Returns the exit status.
int Main(const std::vector<std::string>& args);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_PROGRAM_H_
