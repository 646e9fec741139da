// Formats ranks, nodes, times and errors for messages and log lines.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COORDINATOR_CORE_TEXT_H_
#define MAYPOLE_COORDINATOR_CORE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/log_value.h"
#include "coordinator/core/actions.h"

namespace maypole::coordinator {

// "a, b and 3 more": the texts of the first `most` items and, if there are
// more, rest_of(their number).
template <typename Items, typename TextOf, typename RestOf>
std::string ListText(const Items& items, size_t most,
                     absl::string_view separator, TextOf text_of,
                     RestOf rest_of) {
  std::string out;
  size_t shown = 0;
  for (const auto& item : items) {
    if (shown == most) return out + rest_of(items.size() - most);
    absl::StrAppend(&out, shown++ > 0 ? separator : "", text_of(item));
  }
  return out;
}

// "rank 2", "ranks 0,1,5"; after sixteen ranks "and 9 more".
std::string RanksText(const std::vector<uint32_t>& ranks);

// "node n1 (host h7)"; "node n1" where both are the same.
std::string NodeText(absl::string_view node, absl::string_view host);

// "120 s", "0.5 s"
std::string SecondsText(Time time);

// "GPU-..." of a UUID's kGpuUuidBytes bytes.
std::string UuidText(const std::string& bytes);

// INVALID_ARGUMENT: of the protocol, or of what the ranks submitted.
template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The first max_bytes of the text or less, so that no UTF-8 character is cut.
std::string Cut(absl::string_view text, size_t max_bytes);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_TEXT_H_
