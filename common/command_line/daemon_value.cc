#include "common/command_line/daemon_value.h"

#include "absl/strings/str_cat.h"

namespace maypole {

OptionValue DurationValue(absl::Duration* out, absl::Duration least,
                          absl::Duration most) {
  OptionValue value;
  value.name = "TIME";
  value.initial = absl::FormatDuration(*out);
  value.expected =
      absl::StrCat("a time such as 3s or 500ms, ",
                   least > absl::ZeroDuration() ? "more than 0" : "at least 0");
  if (most < absl::InfiniteDuration()) {
    absl::StrAppend(&value.expected, " and at most ",
                    absl::FormatDuration(most));
  }
  value.store = [=](const std::string& text) {
    absl::Duration time;
    if (!absl::ParseDuration(text, &time) || time < least || time > most) {
      return false;
    }
    *out = time;
    return true;
  };
  return value;
}

OptionValue LogLevelValue(std::string* out) {
  return ChoiceValue(out, {"trace", "debug", "info", "warning", "error", "off"},
                     {"warn", "err", "critical"})
      .WithName("LEVEL");
}

}  // namespace maypole
