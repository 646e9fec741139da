#include "common/command_line/command_line.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/command_line/completion.h"
#include "common/command_line/help_formatter.h"
#include "common/command_line/spelling.h"

namespace maypole {
namespace {

// "-np, --num-proc=N"
std::string Heading(const OptionEntry& option) {
  std::string text;
  for (const std::string& name : option.names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  const OptionValue& value = option.value;
  if (value.name.empty()) return text;
  return text + (value.optional ? "[=" + value.name + "]" : "=" + value.name);
}

std::string Description(const OptionEntry& option) {
  const std::string& initial = option.value.initial;
  return option.help + (initial.empty() ? "" : " [default: " + initial + "]");
}

Status Invalid(const std::string& message) {
  return Status(Code::kInvalidArgument, message);
}

void Store(const OptionValue& value, const std::string& name,
           const std::string& text) {
  const Status status = value.Read(name, text);
  if (!status.ok()) throw CLI::ValidationError(status.message());
}

}  // namespace

struct CommandLine::Parser {
  CLI::App app;
};

CommandLine::CommandLine(Program program)
    : program_(std::move(program)), parser_(std::make_unique<Parser>()) {
  CLI::App& app = parser_->app;
  app.name(program_.name);
  app.description(program_.about);
  app.footer(program_.notes);
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(0, 1);
  app.set_help_flag();  // removes it; AddGeneralOptions() adds it at the end
  table_.abbreviations = program_.abbreviations;
  table_.runs_program = program_.command != nullptr;
}

CommandLine::~CommandLine() = default;

void CommandLine::AddGeneralOptions() {
  CLI::App& app = parser_->app;
  const std::string version = program_.name + " " + program_.version + "\n";
  app.set_version_flag("--version", version, "print the version")
      ->option_text("-v, --version");
  app.set_help_flag(kHelp, "print this")->option_text("-h, --help");
  for (CLI::App* command : app.get_subcommands({})) {
    command->set_help_flag(kHelp);
  }
  table_.options.push_back({.names = {"--version", "-v"}, .help = "version"});
  table_.options.push_back({.names = {kHelp, "-h"}, .help = "help"});
  AddUnabbreviated({"--completion"},
                   ChoiceValue(&shell_, {"bash", "zsh"}).WithName("SHELL"),
                   "print a script that lets the shell, bash or zsh, complete "
                   "options: eval \"$(" +
                       program_.name + " --completion=bash)\"");
  OptionValue files;  // Respell() replaces it by the options in the files
  files.name = files.expected = "FILES";
  files.file = true;
  AddUnabbreviated({kFlagFile}, std::move(files),
                   "read options from these files, one --name=value per line");
}

void CommandLine::Add(std::vector<std::string> names, OptionValue value,
                      std::string help, const std::string& command) {
  AddEntry({.names = std::move(names),
            .value = std::move(value),
            .help = std::move(help),
            .command = command});
}

void CommandLine::AddUnabbreviated(std::vector<std::string> names,
                                   OptionValue value, std::string help) {
  AddEntry({.names = std::move(names),
            .value = std::move(value),
            .help = std::move(help),
            .abbreviated = false});
}

void CommandLine::AddEntry(OptionEntry entry) {
  CLI::App* app = &parser_->app;
  if (!entry.command.empty()) app = app->get_subcommand(entry.command);
  const std::string name = ParserName(entry.names[0]);
  const auto store = [value = entry.value,
                      shown = entry.names[0]](const std::string& text) {
    Store(value, shown, text);
  };
  CLI::Option* option =
      entry.value.name.empty()
          ? app->add_flag_callback(name, [store] { store(""); })
          : app->add_option_function<std::string>(name, store);
  option->trigger_on_parse();
  option->option_text(Heading(entry));
  option->description(Description(entry));
  if (entry.help.empty()) option->group("");
  table_.options.push_back(std::move(entry));
}

void CommandLine::AddCommand(const std::string& name, const std::string& help,
                             std::function<void()> chosen) {
  CLI::App* command = parser_->app.add_subcommand(name, help);
  command->group("Commands")->fallthrough()->callback(std::move(chosen));
  table_.commands.push_back(name);
}

void CommandLine::AddWord(const std::string& command, OptionValue value,
                          bool required) {
  const std::string name = value.name;
  const auto store = [name, value = std::move(value)](const std::string& text) {
    Store(value, name, text);
  };
  parser_->app.get_subcommand(command)
      ->add_option_function<std::string>(name, store)
      ->required(required)
      ->option_text(required ? name : "[" + name + "]");
}

Status CommandLine::Set(const std::string& option, const std::string& text,
                        const std::string& where) {
  for (const OptionEntry& entry : table_.options) {
    const auto& names = entry.names;
    if (std::find(names.begin(), names.end(), option) != names.end()) {
      return entry.value.Read(where, text);
    }
  }
  return Invalid(where + ": " + program_.name + " has no option " + option);
}

Status CommandLine::CheckCommand(const std::vector<std::string>& words) const {
  const std::vector<std::string>& commands = table_.commands;
  if (commands.empty()) return Status();
  if (words.empty()) {
    return Invalid("expected a command: " + JoinedByOr(commands) +
                   "; see --help");
  }
  if (std::find(commands.begin(), commands.end(), words[0]) != commands.end()) {
    return Status();
  }
  return Invalid("there is no command '" + words[0] + "'" +
                 Hint(words[0], commands));
}

Status CommandLine::RunParser(std::vector<std::string> words,
                              std::optional<std::string>* answer) {
  CLI::App& app = parser_->app;
  try {
    std::reverse(words.begin(), words.end());  // the order that CLI11 expects
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    // CLI11 prints empty lines for hidden options; remove them.
    *answer = CLI::detail::find_and_replace(app.help(), "\n\n\n", "\n\n");
  } catch (const CLI::CallForVersion& version) {
    *answer = version.what();
  } catch (const CLI::ValidationError& error) {
    return Invalid(error.what());
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
    const bool marked = extras.size() > 1 && extras[0] == "--";
    return Invalid("unexpected argument '" + extras.at(marked ? 1 : 0) +
                   "'; see --help");
  } catch (const CLI::Error& error) {
    return Invalid(std::string(error.what()) + "; see --help");
  }
  return Status();
}

Status CommandLine::Parse(const std::vector<std::string>& args,
                          std::optional<std::string>* answer) {
  answer->reset();
  AddGeneralOptions();
  if (!args.empty() && args[0] == kComplete) {
    *answer = Complete(table_, {args.begin() + 1, args.end()});
    return Status();
  }
  Respelled line;
  if (Status s = Respell(table_, args, &line); !s.ok()) return s;
  const Status command = CheckCommand(line.words);
  std::vector<std::string> words = std::move(line.options);
  if (program_.command != nullptr) {
    *program_.command = std::move(line.words);
  } else if (command.ok()) {
    // The command comes first. A word after "--" is not an option, even if it
    // starts with '-'.
    auto rest = line.words.begin();
    if (!table_.commands.empty()) words.insert(words.begin(), *rest++);
    if (rest != line.words.end()) words.push_back("--");
    words.insert(words.end(), rest, line.words.end());
  }
  if (Status s = RunParser(std::move(words), answer); !s.ok()) return s;
  if (!shell_.empty()) *answer = CompletionScript(shell_, program_.name);
  return *answer ? Status() : command;
}

int PrintError(const std::string& program, const Status& error,
               int exit_status) {
  std::fprintf(stderr, "%s: %s\n", program.c_str(), error.message().c_str());
  return exit_status;
}

int PrintAnswer(const std::string& answer) {
  std::fputs(answer.c_str(), stdout);
  return 0;
}

}  // namespace maypole
