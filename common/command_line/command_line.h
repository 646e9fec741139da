// CommandLine: the options of one of our programs, defined once.
//
// Purpose: from the definitions follow parsing, --help with all defaults, the
// suggestion for a misspelt name, and shell completion; none can differ from
// another. CLI11 parses and prints; spelling.h lists the ways to write options.
//
// Every program has --help (-h), --version (-v), --completion=bash|zsh, which
// prints a script for the shell, and --flagfile=FILES, where each line is an
// option ("--name=value"), empty, or a comment after '#'.
//
// An option that is given twice has the later value. "--" ends the options.
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

// Exit status of a program that was called wrongly.
inline constexpr int kUsageError = 2;

class CommandLine {
 public:
  struct Program {
    std::string name;
    std::string version;
    std::string about;  // --help before the options
    std::string notes;  // and after them
    // The first word that is no option starts the command line of another
    // program, which goes there. Null: there are no such words.
    std::vector<std::string>* command = nullptr;
    bool abbreviations = false;  // an unambiguous beginning of a name will do
  };

  explicit CommandLine(Program program);
  ~CommandLine();

  // names: with their dashes; messages show the first. help: empty for what is
  // internal: neither --help nor completion shows it. command: the one of
  // AddCommand() that the option belongs to; empty: all.
  void Add(std::vector<std::string> names, OptionValue value, std::string help,
           const std::string& command = "");
  // It cannot be abbreviated (OptionEntry::abbreviated).
  void AddUnabbreviated(std::vector<std::string> names, OptionValue value,
                        std::string help);

  // What the program can be told to do. If there are commands, one must be
  // given; chosen() is called for it.
  void AddCommand(const std::string& name, const std::string& help,
                  std::function<void()> chosen);
  // A word after the command, at most one.
  void AddWord(const std::string& command, OptionValue value, bool required);

  // Once. args: without the program's name. *answer: the text that --help and
  // its like ask for. If there is one the program prints it and ends; the other
  // options may not have been stored.
  Status Parse(const std::vector<std::string>& args,
               std::optional<std::string>* answer);

 private:
  struct Parser;  // CLI11's

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
// Prints what Parse() has answered, and returns the exit status.
int PrintAnswer(const std::string& answer);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_COMMAND_LINE_COMMAND_LINE_H_
