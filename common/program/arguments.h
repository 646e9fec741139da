// Command lines of the daemons: errors in one line, and --help.
//
// Purpose: absl's parser ends the program by itself, with several lines and
// status 1; here the caller gets one sentence and decides.
//
// Thread contract: before any thread starts.
#ifndef MAYPOLE_COMMON_PROGRAM_ARGUMENTS_H_
#define MAYPOLE_COMMON_PROGRAM_ARGUMENTS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace maypole {

// Exit status of a program that was called wrongly.
inline constexpr int kUsageError = 2;

// Nothing but known flags with values that they can have. Sets them;
// absl::ParseCommandLine then finds nothing to complain about.
absl::Status CheckArguments(int argc, char** argv);

// --help, -help or -h is among them.
bool WantsHelp(int argc, char** argv);

// To stdout: the flags defined in `file` (the end of its path), by name, but
// those whose help starts with "internal".
void PrintFlags(absl::string_view file);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_ARGUMENTS_H_
