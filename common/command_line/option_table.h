// OptionTable: the options of a program, as data.
//
// Thread contract: values.
#ifndef MAYPOLE_COMMON_COMMAND_LINE_OPTION_TABLE_H_
#define MAYPOLE_COMMON_COMMAND_LINE_OPTION_TABLE_H_

#include <string>
#include <vector>

#include "common/command_line/option_value.h"

namespace maypole {

struct OptionEntry {
  std::vector<std::string> names;  // as --help shows them: "-np", "--num-proc"
  OptionValue value = {};
  std::string help;          // empty: internal, shown nowhere
  std::string command = "";  // the command that it belongs to; empty: all
  // False for new options of a program with abbreviations, so that
  // abbreviations that users already use stay unambiguous.
  bool abbreviated = true;
};

struct OptionTable {
  std::vector<OptionEntry> options;
  std::vector<std::string> commands;  // empty: the program has none
  bool runs_program = false;   // the first word starts another command line
  bool abbreviations = false;  // names may be abbreviated if unambiguous
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_COMMAND_LINE_OPTION_TABLE_H_
