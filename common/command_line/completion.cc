#include "common/command_line/completion.h"

#include <algorithm>
#include <utility>

#include "common/command_line/spelling.h"

namespace maypole {
namespace {

constexpr char kBash[] = R"(# bash completion for PROGRAM
_FUNCTION() {
  local word=${COMP_WORDS[COMP_CWORD]} answer
  [[ $word == = ]] && word=
  answer=$("$1" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  case $answer in
    "") COMPREPLY=() ;;
    :files)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    :commands) mapfile -t COMPREPLY < <(compgen -c -- "$word") ;;
    *) mapfile -t COMPREPLY <<<"$answer" ;;
  esac
}
complete -F _FUNCTION PROGRAM
)";

constexpr char kZsh[] = R"(#compdef PROGRAM
_FUNCTION() {
  local answer
  answer=$($words[1] --complete "${(@)words[2,CURRENT]}" 2>/dev/null)
  case $answer in
    :files) compset -P '*='; _files ;;
    :commands) _command_names -e ;;
    *) compadd -- ${(f)answer} ;;
  esac
}
compdef _FUNCTION PROGRAM
)";

void ReplaceAll(const std::string& from, const std::string& to,
                std::string* text) {
  for (size_t at = text->find(from); at != text->npos;
       at = text->find(from, at + to.size())) {
    text->replace(at, from.size(), to);
  }
}

// "--name", "=", "value" -> "--name=value"
std::vector<std::string> WithoutSplits(const std::vector<std::string>& words) {
  std::vector<std::string> whole;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool joins = words[i] == "=" && !whole.empty();
    if (!joins) {
      whole.push_back(words[i]);
      continue;
    }
    whole.back() += "=";
    if (i + 1 < words.size()) whole.back() += words[++i];
  }
  return whole;
}

std::string Matching(const std::vector<std::string>& candidates,
                     const std::string& beginning,
                     const std::string& before = "") {
  std::string lines;
  for (const std::string& candidate : candidates) {
    if (candidate.starts_with(beginning)) lines += before + candidate + "\n";
  }
  return lines;
}

std::string CompleteValue(const OptionValue& value,
                          const std::string& beginning,
                          const std::string& before) {
  if (value.file) return ":files";
  return Matching(value.choices, beginning, before);
}

std::string CompleteName(const OptionTable& table, const std::string& command,
                         const std::string& beginning) {
  std::vector<std::string> names;
  for (const OptionEntry& option : table.options) {
    const bool fits = option.command.empty() || option.command == command;
    if (option.help.empty() || !fits) continue;
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return Matching(names, beginning);
}

}  // namespace

std::string CompletionScript(const std::string& shell,
                             const std::string& program) {
  std::string script = shell == "bash" ? kBash : kZsh;
  std::string function = program;
  std::replace(function.begin(), function.end(), '-', '_');
  ReplaceAll("FUNCTION", function, &script);
  ReplaceAll("PROGRAM", program, &script);
  return script;
}

std::string Complete(const OptionTable& table, std::vector<std::string> words) {
  // Bash splits "--name=va" into three words, and completes only the last one.
  const size_t size = words.size();
  const bool cut =
      size > 1 && (words[size - 1] == "=" || words[size - 2] == "=");
  words = WithoutSplits(words);
  if (words.empty()) words.emplace_back();
  const std::string last = words.back();
  words.pop_back();

  std::string command;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!IsOptionWord(words[i])) {
      if (table.runs_program) return ":files";
      if (command.empty()) command = words[i];
      continue;
    }
    const OptionWord word = ReadOptionWord(table, words[i]);
    const bool wants = word.option != nullptr && !word.value &&
                       !word.option->value.name.empty() &&
                       !word.option->value.optional;
    if (!wants) continue;
    if (i + 1 == words.size()) {
      return CompleteValue(word.option->value, last, "");
    }
    ++i;
  }
  const OptionWord word = ReadOptionWord(table, last);
  if (IsOptionWord(last) && word.option != nullptr && word.value) {
    return CompleteValue(word.option->value, *word.value,
                         cut ? "" : word.name + "=");
  }
  if (!last.empty() && last[0] == '-') {
    return CompleteName(table, command, last);
  }
  if (table.runs_program) return ":commands";
  if (!table.commands.empty()) {
    return command.empty() ? Matching(table.commands, last) : "";
  }
  return CompleteName(table, command, last);
}

}  // namespace maypole
