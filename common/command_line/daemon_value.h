// Values for options of the daemons that need Abseil; option_value.h has the
// others.
//
// Thread contract: values; the variables must outlive the command line.
#ifndef MAYPOLE_COMMON_COMMAND_LINE_DAEMON_VALUE_H_
#define MAYPOLE_COMMON_COMMAND_LINE_DAEMON_VALUE_H_

#include <string>

#include "absl/time/time.h"
#include "common/command_line/option_value.h"

namespace maypole {

inline constexpr absl::Duration kShortestDuration = absl::Nanoseconds(1);
inline constexpr absl::Duration kYear = absl::Hours(24 * 365);

// A duration such as "3s", "500ms" or "1h30m", from `least` to `most`.
OptionValue DurationValue(absl::Duration* out, absl::Duration least,
                          absl::Duration most);
// A log level of spdlog.
OptionValue LogLevelValue(std::string* out);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_COMMAND_LINE_DAEMON_VALUE_H_
