// HelpFormatter: how --help shows options and commands. Only command_line.cc
// may include it, because CLI11's headers take seconds to compile.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_COMMAND_LINE_HELP_FORMATTER_H_
#define MAYPOLE_COMMON_COMMAND_LINE_HELP_FORMATTER_H_

#include <cstddef>
#include <sstream>
#include <string>

// clang-format off: each header needs the one before it.
#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
// clang-format on

namespace maypole {

inline constexpr size_t kHelpColumn = 28;
inline constexpr size_t kHelpWidth = 80;

// A heading with its text to the right, in lines of at most kHelpWidth columns.
inline std::string HelpEntry(const std::string& heading,
                             const std::string& text) {
  std::string lines;
  std::string line = "  " + heading;
  if (line.size() + 2 > kHelpColumn) {
    lines += line + "\n";
    line.clear();
  }
  line.resize(kHelpColumn, ' ');
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (line.size() > kHelpColumn) {
      if (line.size() + 1 + word.size() > kHelpWidth) {
        lines += line + "\n";
        line.assign(kHelpColumn, ' ');
      } else {
        line += ' ';
      }
    }
    line += word;
  }
  return lines + line + "\n";
}

// Omits CLI11's usage line (the description contains the usage), and prints
// option names as Add() got them.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "";
  }
  std::string make_positionals(const CLI::App*) const override { return ""; }
  std::string make_description(const CLI::App* app) const override {
    if (app->get_parent() == nullptr) return app->get_description();
    const std::string program = app->get_parent()->get_name();
    return program + " " + CommandHeading(app) + ": " + app->get_description() +
           "\n\nOptions of all commands: " + program + " --help\n";
  }
  std::string make_option(const CLI::Option* option, bool) const override {
    const std::string& names = option->get_option_text();
    return names.empty() ? "" : HelpEntry(names, option->get_description());
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::string text =
        HelpEntry(CommandHeading(command), command->get_description());
    for (const CLI::Option* option : command->get_options()) {
      const std::string& names = option->get_option_text();
      if (option->get_positional() || names.empty()) continue;
      text += HelpEntry("  " + names, option->get_description());
    }
    return text;
  }

 private:
  // "ranks [JOB]"
  static std::string CommandHeading(const CLI::App* command) {
    std::string heading = command->get_name();
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_positional()) heading += " " + option->get_option_text();
    }
    return heading;
  }
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_COMMAND_LINE_HELP_FORMATTER_H_
