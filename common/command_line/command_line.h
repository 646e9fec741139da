// CommandLine: defines the options of one of our programs in one place.
//
// Purpose: parsing, --help with all defaults, suggestions for misspelt names
// and shell completion all use the same definitions, so they always agree.
// CLI11 parses and prints; spelling.h lists the ways to write options.
//
// Every program has --help (-h), --version (-v), --completion=bash|zsh, which
// prints a script for the shell, and --flagfile=FILES, which reads options from
// files. Each line of such a file is an option ("--name=value"), empty, or a
// comment that starts with '#'.
//
// If an option is given twice, the later value counts. "--" ends the options.
// An error is one line: "--slots: expected an integer from 64 to 16384, got
// "x"", or "there is no flag '--slot'; did you mean '--slots'? See --help".
//
// Thread contract: not synchronized.
//
// Example:
//   int ranks = 1;
//   CommandLine line({.name = "launch", .version = "1.0", .about = "..."});
//   line.Add({"-np", "--num-proc"}, IntegerValue(&ranks, 1, 64), "how many");
//   std::optional<std::string> answer;
//   Status status = line.Parse({"-np2"}, &answer);
//   if (!status.ok()) return PrintError("launch", status, kUsageError);
//   if (answer) return PrintAnswer(*answer);
#ifndef MAYPOLE_COMMON_COMMAND_LINE_COMMAND_LINE_H_
#define MAYPOLE_COMMON_COMMAND_LINE_COMMAND_LINE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/command_line/option_table.h"
#include "common/command_line/option_value.h"
#include "common/status.h"

namespace maypole {

// The exit status for wrong usage.
inline constexpr int kUsageError = 2;

class CommandLine {
 public:
  struct Program {
    std::string name;
    std::string version;
    std::string about;  // text of --help before the options
    std::string notes;  // text of --help after the options
    // If not null, the first word that is not an option starts the command line
    // of another program, which is stored there.
    std::vector<std::string>* command = nullptr;
    bool abbreviations = false;  // names may be abbreviated if unambiguous
  };

  explicit CommandLine(Program program);
  ~CommandLine();

  // names: with their dashes; messages show the first one. help: empty for an
  // internal option, which --help and completion do not show. command: the
  // command (of AddCommand()) that the option belongs to; empty: all commands.
  void Add(std::vector<std::string> names, OptionValue value, std::string help,
           const std::string& command = "");
  // Adds an option that cannot be abbreviated (OptionEntry::abbreviated).
  void AddUnabbreviated(std::vector<std::string> names, OptionValue value,
                        std::string help);

  // Adds a command. If a program has commands, the user must give one; Parse()
  // calls its `chosen`.
  void AddCommand(const std::string& name, const std::string& help,
                  std::function<void()> chosen);
  // Adds an argument after the command. A command has at most one.
  void AddWord(const std::string& command, OptionValue value, bool required);

  // Stores the value of an option that was given elsewhere than on the command
  // line. Call Parse() afterwards: the command line overrides it. text: empty
  // for a switch. Errors start with `where`.
  Status Set(const std::string& option, const std::string& text,
             const std::string& where);

  // Call it once. args: the arguments without the program's name. *answer: the
  // text that --help, --version or --completion asks for, if one was given. The
  // program then prints it and exits; other options may not have been stored.
  Status Parse(const std::vector<std::string>& args,
               std::optional<std::string>* answer);

 private:
  struct Parser;  // holds CLI11's parser

  void AddEntry(OptionEntry entry);
  void AddGeneralOptions();
  Status CheckCommand(const std::vector<std::string>& words) const;
  Status RunParser(std::vector<std::string> words,
                   std::optional<std::string>* answer);

  const Program program_;
  std::string shell_;  // of --completion
  OptionTable table_;
  std::unique_ptr<Parser> parser_;
};

// For main(): prints "PROGRAM: MESSAGE" to stderr, and returns exit_status.
int PrintError(const std::string& program, const Status& error,
               int exit_status);
// Prints the answer of Parse() to stdout, and returns the exit status.
int PrintAnswer(const std::string& answer);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_COMMAND_LINE_COMMAND_LINE_H_
