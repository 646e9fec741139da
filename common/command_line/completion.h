// Completion: what a shell offers when the user presses Tab.
//
// Purpose: the shell's script asks the program itself, so that what it offers
// can never be older than the program. The script is what
// --completion=bash|zsh prints; it runs "PROGRAM --complete WORD...".
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_COMMAND_LINE_COMPLETION_H_
#define MAYPOLE_COMMON_COMMAND_LINE_COMPLETION_H_

#include <string>
#include <vector>

#include "common/command_line/option_table.h"

namespace maypole {

inline constexpr char kComplete[] = "--complete";  // internal, the first word

// The script that makes `shell`, bash or zsh, ask the program.
std::string CompletionScript(const std::string& shell,
                             const std::string& program);

// words: of the command line, up to the one that the cursor is in, which may be
// empty. Bash makes three words of "--name=value".
// Returns what the last word may become, one a line; or ":files" or
// ":commands": the shell knows them itself.
std::string Complete(const OptionTable& table, std::vector<std::string> words);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_COMMAND_LINE_COMPLETION_H_
