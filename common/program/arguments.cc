#include "common/program/arguments.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace maypole {
namespace {

// Of a flag without "=value": "--name" or "--noname". Null: neither.
absl::CommandLineFlag* BooleanFlag(absl::string_view name) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (flag == nullptr && absl::ConsumePrefix(&name, "no")) {
    flag = absl::FindCommandLineFlag(name);
  }
  return flag != nullptr && flag->IsOfType<bool>() ? flag : nullptr;
}

}  // namespace

absl::Status CheckArguments(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    absl::string_view name = argument;
    if (!absl::ConsumePrefix(&name, "-") || name.empty() || name == "-") {
      return absl::InvalidArgumentError(
          absl::StrCat("'", argument, "' is not a flag; see --help"));
    }
    absl::ConsumePrefix(&name, "-");
    const size_t equals = name.find('=');
    const bool has_value = equals != absl::string_view::npos;
    absl::string_view value =
        has_value ? name.substr(equals + 1) : absl::string_view();
    name = name.substr(0, equals);
    // absl's parser answers --version; it is no flag that can be found.
    if (argument == "--version" || argument == "-version") continue;
    if (!has_value && BooleanFlag(name) != nullptr) continue;
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no flag '--", name, "'; see --help"));
    }
    if (!has_value) {
      if (++i == argc) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", name, " needs a value; see --help"));
      }
      value = argv[i];
    }
    if (std::string error; !flag->ParseFrom(value, &error)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", name, "='", value, "' is not a value that it can have",
          error.empty() ? "" : ": ", error, "; see --help"));
    }
  }
  return absl::OkStatus();
}

bool WantsHelp(int argc, char** argv) {
  return std::any_of(argv + 1, argv + argc, [](const absl::string_view a) {
    return a == "--help" || a == "-help" || a == "-h";
  });
}

void PrintFlags(absl::string_view file) {
  std::vector<std::string> lines;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!absl::EndsWith(flag->Filename(), file) ||
        absl::StartsWith(flag->Help(), "internal")) {
      continue;
    }
    lines.push_back(absl::StrCat("  --", name, "=", flag->DefaultValue(),
                                 "\n      ", flag->Help(), "\n"));
  }
  std::sort(lines.begin(), lines.end());
  for (const std::string& line : lines) std::printf("%s", line.c_str());
  std::printf("  --version\n      Prints the version.\n");
}

}  // namespace maypole
