// A value of a log line (key=value) that may hold anything.
//
//   spdlog::warn("event=refused reason={}", LogValue(text));
//
// What somebody else has chosen (the name of a tensor, a peer's words) cannot
// end the value, the line, or what a terminal shows of it.
#ifndef MAYPOLE_COMMON_LOG_VALUE_H_
#define MAYPOLE_COMMON_LOG_VALUE_H_

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace maypole {

// In quotes, control characters and quotes escaped; names within the text stand
// in single quotes, which need none.
inline std::string LogValue(absl::string_view text) {
  const std::string escaped =
      absl::StrReplaceAll(absl::Utf8SafeCEscape(text), {{"\\'", "'"}});
  std::string out = "\"";
  for (size_t i = 0; i < escaped.size(); ++i) {
    // U+0080 to U+009F are control characters too: to a terminal U+009B is ESC
    // and [.
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
