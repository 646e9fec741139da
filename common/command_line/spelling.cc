#include "common/command_line/spelling.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/system/text_file.h"

namespace maypole {
namespace {

constexpr int kMaxFlagFileDepth = 8;  // flag files may name other flag files

// "--secret-file" -> "secret_file"
std::string Plain(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string plain(name);
  std::replace(plain.begin(), plain.end(), '-', '_');
  return plain;
}

bool IsAbbreviation(const std::string& plain, const OptionEntry& option) {
  return option.abbreviated && !option.help.empty() &&
         std::any_of(option.names.begin(), option.names.end(),
                     [&](const std::string& name) {
                       return Plain(name).starts_with(plain);
                     });
}

const OptionEntry* Find(const OptionTable& table, const std::string& plain) {
  const OptionEntry* found = nullptr;
  int abbreviated = 0;
  for (const OptionEntry& option : table.options) {
    for (const std::string& name : option.names) {
      if (Plain(name) == plain) return &option;
    }
    if (!table.abbreviations || !IsAbbreviation(plain, option)) continue;
    found = &option;
    ++abbreviated;
  }
  return abbreviated == 1 ? found : nullptr;
}

// "-np4"
OptionWord ReadAttachedNumber(const OptionTable& table,
                              const std::string& word) {
  const size_t digits = word.find_last_not_of("0123456789") + 1;
  if (digits == word.size()) return {};
  for (const OptionEntry& option : table.options) {
    for (const std::string& name : option.names) {
      if (option.value.number && word.substr(0, digits) == name) {
        return {&option, name, word.substr(digits)};
      }
    }
  }
  return {};
}

// The number of insertions, deletions, replacements and swaps of neighbours
// that turn one text into the other.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1,
                                     std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1,
                          d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

// The name most similar to `wrong`; empty if none is similar.
std::string Nearest(std::string_view wrong,
                    const std::vector<std::string>& names) {
  const std::string plain = Plain(wrong);
  std::string nearest;
  // Allows one mistake in a short word, two in a longer one.
  size_t limit = plain.size() < 5 ? 2 : 3;
  for (const std::string& name : names) {
    const std::string candidate = Plain(name);
    const bool begins = plain.size() > 2 && candidate.starts_with(plain);
    const size_t distance = begins ? 1 : Distance(plain, candidate);
    if (distance >= limit || distance >= candidate.size()) continue;
    limit = distance;
    nearest = name;
  }
  return nearest;
}

std::vector<std::string> VisibleNames(const OptionTable& table) {
  std::vector<std::string> names;
  for (const OptionEntry& option : table.options) {
    if (option.help.empty()) continue;
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

class Respeller {
 public:
  Respeller(const OptionTable& table, Respelled* out)
      : table_(table), out_(out) {}

  // Continues after an error, because --help may follow. The first error
  // counts.
  void Read(const std::vector<std::string>& args, int depth = 0);
  // Call it after Read(): reports options that belong to another command.
  void CheckCommands();
  Status status() const { return help_ ? Status() : status_; }

 private:
  void ReadOption(const std::vector<std::string>& args, size_t* i, int depth);
  void ReadFlagFiles(const std::string& paths, int depth);
  void Fail(std::string message) {
    if (status_.ok()) status_ = Invalid(std::move(message));
  }

  const OptionTable& table_;
  Respelled* out_;
  Status status_;
  bool help_ = false;
  std::vector<OptionWord> of_commands_;
};

void Respeller::Read(const std::vector<std::string>& args, int depth) {
  bool only_words = false;
  for (size_t i = 0; i < args.size() && !help_; ++i) {
    if (!only_words && args[i] == "--") {
      only_words = true;
      continue;
    }
    if (!only_words && IsOptionWord(args[i])) {
      ReadOption(args, &i, depth);
      continue;
    }
    only_words = only_words || table_.runs_program;
    out_->words.push_back(args[i]);
  }
}

void Respeller::ReadOption(const std::vector<std::string>& args, size_t* i,
                           int depth) {
  const OptionWord word = ReadOptionWord(table_, args[*i]);
  if (word.option == nullptr) {
    return Fail("there is no flag '" + word.name + "'" +
                Hint(word.name, VisibleNames(table_)));
  }
  const std::string& name = word.option->names[0];
  const OptionValue& takes = word.option->value;
  if (takes.name.empty() && word.value) {
    return Fail(name + " takes no value; see --help");
  }
  if (name == kHelp) {
    help_ = true;
    out_->options = {kHelp};
    return;
  }
  std::string value = word.value.value_or("");
  if (!word.value && !takes.name.empty() && !takes.optional) {
    if (*i + 1 == args.size()) {
      return Fail(name + ": expected " + takes.expected + "; see --help");
    }
    value = args[++*i];
    const bool whole = value.find(',') != value.npos;
    for (int n = 1; n < takes.words && !whole && *i + 1 < args.size(); ++n) {
      value += "," + args[++*i];
    }
  }
  if (!word.option->command.empty()) of_commands_.push_back(word);
  if (name == kFlagFile) return ReadFlagFiles(value, depth + 1);
  out_->options.push_back(ParserName(name));
  if (!takes.name.empty()) out_->options.push_back(value);
}

void Respeller::CheckCommands() {
  const std::vector<std::string>& known = table_.commands;
  if (out_->words.empty() ||
      std::find(known.begin(), known.end(), out_->words[0]) == known.end()) {
    return;
  }
  for (const OptionWord& word : of_commands_) {
    if (word.option->command == out_->words[0]) continue;
    Fail(word.name + " is an option of " + word.option->command + ", not of " +
         out_->words[0] + "; see --help");
  }
}

void Respeller::ReadFlagFiles(const std::string& paths, int depth) {
  if (depth > kMaxFlagFileDepth) {
    return Fail("--flagfile: " + paths +
                ": too many levels; perhaps it names itself");
  }
  std::vector<std::string> files;
  ListValue(&files, "").store(paths);
  for (const std::string& path : files) {
    std::string text;
    if (const Status s = ReadTextFile(path, &text); !s.ok()) {
      return Fail("--flagfile: " + s.message());
    }
    std::istringstream file(text);
    std::vector<std::string> args;
    for (std::string line; std::getline(file, line);) {
      const size_t begin = line.find_first_not_of(" \t\r");
      if (begin == line.npos || line[begin] == '#') continue;
      line = line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
      if (!IsOptionWord(line)) {
        return Fail("--flagfile: " + path + ": '" + line +
                    "' is not an option: expected --name=value in each line");
      }
      args.push_back(std::move(line));
    }
    Read(args, depth);
  }
}

}  // namespace

bool IsOptionWord(std::string_view word) {
  return word.size() > 1 && word[0] == '-' && word != "--";
}

std::string ParserName(const std::string& name) {
  const std::string plain =
      name.substr(std::min(name.find_first_not_of('-'), name.size()));
  return (plain.size() == 1 ? "-" : "--") + plain;
}

OptionWord ReadOptionWord(const OptionTable& table, const std::string& word) {
  const size_t equals = word.find('=');
  OptionWord read;
  read.name = word.substr(0, equals);
  if (equals != word.npos) read.value = word.substr(equals + 1);
  read.option = Find(table, Plain(read.name));
  if (read.option != nullptr || read.value) return read;
  OptionWord attached = ReadAttachedNumber(table, word);
  return attached.option != nullptr ? attached : read;
}

Status Respell(const OptionTable& table, const std::vector<std::string>& args,
               Respelled* out) {
  Respeller respeller(table, out);
  respeller.Read(args);
  respeller.CheckCommands();
  return respeller.status();
}

std::string Hint(std::string_view wrong,
                 const std::vector<std::string>& names) {
  const std::string nearest = Nearest(wrong, names);
  return nearest.empty() ? "; see --help"
                         : "; did you mean '" + nearest + "'? See --help";
}

}  // namespace maypole
