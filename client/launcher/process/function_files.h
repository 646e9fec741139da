// The files of maypole.run (client/python/maypole/runner), which has maypolerun
// run a Python function in each rank.
//
// Purpose: the files lie in a private directory that maypole.run creates and
// passes with --function-directory, so there is no open port that would
// unpickle a stranger's data:
//   function   what each rank runs, pickled; maypole.run writes it. Other hosts
//              get a copy through ssh (ToNode.function_part).
//   result.N   what rank N has written to kAnnounceFd: its result. N is the
//              number of the process in an elastic job.
//   outcome    why the job failed: the rank that failed first, or -1, and a
//              newline; then the message. Both empty: it did not fail.
// All have mode 0600.
//
// Thread contract: functions; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_PROCESS_FUNCTION_FILES_H_
#define MAYPOLE_CLIENT_LAUNCHER_PROCESS_FUNCTION_FILES_H_

#include <functional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace maypole::launcher {

struct Outcome {
  int rank = -1;  // -1: no rank's failure
  std::string cause;
};

inline std::string FunctionFile(const std::string& directory) {
  return directory + "/function";
}
inline std::string ResultFile(const std::string& directory, int rank) {
  return directory + "/result." + std::to_string(rank);
}

// Appends to the file, which is created with mode 0600. flags: further ones for
// open().
Status AppendPrivately(const std::string& path, std::string_view bytes,
                       int flags = 0);
// Calls take() with the file's content, in parts that fit into a frame.
Status ReadInParts(const std::string& path,
                   const std::function<void(std::string_view)>& take);
Status WriteOutcome(const std::string& directory, const Outcome& outcome);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_PROCESS_FUNCTION_FILES_H_
