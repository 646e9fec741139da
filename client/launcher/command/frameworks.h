// Which frameworks the ranks' python3 has.
//
// Purpose: for maypolerun --check-build. Nothing is compiled against them, so
// what counts is what python3 finds when the job runs.
//
// Thread contract: a function; it runs python3, which imports none of them.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORKS_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORKS_H_

#include <map>
#include <string>

namespace maypole::launcher {

struct Frameworks {
  std::string python;  // its path; empty: there is none on PATH
  // Of those that are installed, by the name of the module ("torch"): the
  // version, or "?" if nothing says it.
  std::map<std::string, std::string> versions;
};

Frameworks FindFrameworks();

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_FRAMEWORKS_H_
