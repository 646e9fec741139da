// LogValue: makes any text safe as the value of a key=value pair in a log line.
//
//   spdlog::warn("event=refused reason={}", LogValue(text));
//
// Text that a user or a peer has chosen (the name of a tensor, an error
// message) cannot end the value or the line, nor control a terminal.
//
// Thread contract: a pure function.
#ifndef MAYPOLE_COMMON_LOG_VALUE_H_
#define MAYPOLE_COMMON_LOG_VALUE_H_

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace maypole {

// The text in double quotes, with control characters and double quotes escaped.
// Single quotes, which enclose names in our messages, are not escaped.
inline std::string LogValue(absl::string_view text) {
  const std::string escaped =
      absl::StrReplaceAll(absl::Utf8SafeCEscape(text), {{"\\'", "'"}});
  std::string out = "\"";
  for (size_t i = 0; i < escaped.size(); ++i) {
    // U+0080 to U+009F are also control characters: a terminal reads U+009B as
    // ESC [.
    const auto next =
        static_cast<unsigned char>(i + 1 < escaped.size() ? escaped[i + 1] : 0);
    if (escaped[i] == '\xc2' && next >= 0x80 && next < 0xa0) {
      absl::StrAppend(&out, absl::CEscape(escaped.substr(i++, 2)));
    } else {
      out += escaped[i];
    }
  }
  return out + "\"";
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_LOG_VALUE_H_
