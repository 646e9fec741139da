// Completion: what a shell offers when the user presses Tab.
//
// Purpose: --completion=bash|zsh prints a script for the shell. The script runs
// "PROGRAM --complete WORD...", so that its suggestions always match the
// installed program.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_COMMAND_LINE_COMPLETION_H_
#define MAYPOLE_COMMON_COMMAND_LINE_COMPLETION_H_

#include <string>
#include <vector>

#include "common/command_line/option_table.h"

namespace maypole {

inline constexpr char kComplete[] = "--complete";  // internal; the first word

// The completion script for `shell`, bash or zsh.
std::string CompletionScript(const std::string& shell,
                             const std::string& program);

// words: the words of the command line up to the one with the cursor, which may
// be empty. Bash splits "--name=value" into three words.
// Returns the completions of the last word, one per line, or ":files" or
// ":commands" if the shell must complete file or program names.
std::string Complete(const OptionTable& table, std::vector<std::string> words);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_COMMAND_LINE_COMPLETION_H_
