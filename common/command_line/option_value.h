// OptionValue: which value an option takes, and where it is stored.
//
// Purpose: all conversions of option values. An OptionValue has its name in
// --help, the "expected ..." text of errors, its default, and the function that
// converts and stores a text. The default in --help is the content of the
// variable when the OptionValue is created.
//
//   int ranks = 1;
//   line.Add({"-np"}, IntegerValue(&ranks, 1, 64), "ranks to start");
//
// Thread contract: values; the variables must outlive the command line.
#ifndef MAYPOLE_COMMON_COMMAND_LINE_OPTION_VALUE_H_
#define MAYPOLE_COMMON_COMMAND_LINE_OPTION_VALUE_H_

#include <charconv>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace maypole {

struct OptionValue {
  std::string name;      // in --help: "HOST:PORT"; empty: a switch, no value
  std::string expected;  // in errors: "an integer from 1 to 64"
  std::string initial;   // in --help: "[default: ...]"; empty: none
  std::vector<std::string> choices;  // for completion; empty: any text
  bool file = false;                 // completion offers files
  bool number = false;               // "-np4" means "-np 4"
  bool optional = false;             // "--agent" is allowed without "=SOCKET"
  int words = 1;                     // 2: "--range 1 9" means "--range=1,9"
  // Returns false, and stores nothing, if the text is not what is expected.
  std::function<bool(const std::string& text)> store;

  // Stores the text, or returns an error that starts with `option` and says
  // what was expected.
  Status Read(const std::string& option, const std::string& text) const;
  // The same value with another default or name in --help.
  OptionValue WithDefault(std::string text) &&;
  OptionValue WithName(std::string text) &&;
};

// Sets *out to `on` if the option is given.
OptionValue SwitchValue(bool* out, bool on = true);
OptionValue TextValue(std::string* out, std::string name);
// A text that must not be empty.
OptionValue NameValue(std::string* out, std::string name);
OptionValue FileValue(std::string* out, std::string name = "PATH");
// "--agent" sets *given; "--agent=SOCKET" also sets *out.
OptionValue OptionalTextValue(bool* given, std::string* out, std::string name);
// Texts separated by commas.
OptionValue ListValue(std::vector<std::string>* out, std::string name);
// Appends to *out: the option may be given several times.
OptionValue RepeatedValue(std::vector<std::string>* out, std::string name);
// One of `choices`; `synonyms` are accepted but not shown.
OptionValue ChoiceValue(std::string* out, std::vector<std::string> choices,
                        std::vector<std::string> synonyms = {});

// "a, b or c"
std::string JoinedByOr(const std::vector<std::string>& words);
// An IntegerValue() without store(). most: empty if there is no upper limit.
OptionValue IntegerWithoutStore(std::string initial, const std::string& least,
                                const std::string& most);

// An integer, decimal or, with the prefix "0x", hexadecimal.
template <class Int>
OptionValue IntegerValue(Int* out, Int least,
                         Int most = std::numeric_limits<Int>::max()) {
  const bool limited = most < std::numeric_limits<Int>::max();
  OptionValue value =
      IntegerWithoutStore(std::to_string(*out), std::to_string(least),
                          limited ? std::to_string(most) : "");
  value.store = [out, least, most](const std::string& text) {
    std::string_view digits = text;
    const bool hexadecimal =
        digits.starts_with("0x") || digits.starts_with("0X");
    if (hexadecimal) digits.remove_prefix(2);
    const char* end = digits.data() + digits.size();
    Int number{};
    const auto [stop, error] =
        std::from_chars(digits.data(), end, number, hexadecimal ? 16 : 10);
    if (error != std::errc() || stop != end || number < least ||
        number > most) {
      return false;
    }
    *out = number;
    return true;
  };
  return value;
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_COMMAND_LINE_OPTION_VALUE_H_
