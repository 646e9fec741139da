// Spelling: the ways to write an option, and which option is meant.
//
// Purpose: users write options in more ways than CLI11 accepts. Respell()
// converts all of them to the form --NAME VALUE, which CLI11 accepts.
//
// An option --num_proc with the other names -n and -np is written
//   --num_proc 4, --num_proc=4, -num_proc 4, -num_proc=4, --num-proc 4, ...
//   -n 4, -n=4, -n4, -np4             (without space only before a number)
//   --num 4                           (if the program has abbreviations)
// The word after an option is its value, even if it starts with '-'.
//
// Thread contract: pure functions, except that Respell() reads the flag files.
#ifndef MAYPOLE_COMMON_COMMAND_LINE_SPELLING_H_
#define MAYPOLE_COMMON_COMMAND_LINE_SPELLING_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/command_line/option_table.h"
#include "common/status.h"

namespace maypole {

inline constexpr char kFlagFile[] = "--flagfile";
inline constexpr char kHelp[] = "--help";

// "-x" and "--x", but not "-" and "--".
bool IsOptionWord(std::string_view word);

// A word that starts with '-', read as an option.
struct OptionWord {
  const OptionEntry* option = nullptr;  // null: there is no such option
  std::string name;                     // as it was written, without "=VALUE"
  std::optional<std::string> value;     // of "--name=VALUE" or "-np4"
};
OptionWord ReadOptionWord(const OptionTable& table, const std::string& word);

// The name by which CLI11 knows the option: "-h" or "--np".
std::string ParserName(const std::string& name);

struct Respelled {
  // --NAME, or --NAME and its value. If --help is given, it is the only one.
  std::vector<std::string> options;
  // The other words; if the program runs another one, that command line.
  std::vector<std::string> words;
};
Status Respell(const OptionTable& table, const std::vector<std::string>& args,
               Respelled* out);

// "; did you mean '--network_timeout'? See --help" if one of the names is
// similar to the wrong one, otherwise "; see --help".
std::string Hint(std::string_view wrong, const std::vector<std::string>& names);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_COMMAND_LINE_SPELLING_H_
