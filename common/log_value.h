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
  return absl::StrCat("\"",
                      absl::StrReplaceAll(absl::Utf8SafeCEscape(text),
                                          {{"\\'", "'"}}),
                      "\"");
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_LOG_VALUE_H_
