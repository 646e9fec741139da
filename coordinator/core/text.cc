#include "coordinator/core/text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/gpu/uuid.h"
#include "common/limits.h"

namespace maypole::coordinator {

std::string RanksText(const std::vector<uint32_t>& ranks) {
  constexpr size_t kShown = 16;
  const size_t shown = std::min(kShown, ranks.size());
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  absl::StrAppend(&out,
                  absl::StrJoin(ranks.begin(), ranks.begin() + shown, ","));
  if (ranks.size() > shown) {
    absl::StrAppend(&out, " and ", ranks.size() - shown, " more");
  }
  return out;
}

std::string NodeText(absl::string_view node, absl::string_view host) {
  if (host.empty() || host == node) return absl::StrCat("node ", node);
  return absl::StrCat("node ", node, " (host ", host, ")");
}

std::string SecondsText(Time time) {
  return absl::StrFormat("%g s", std::chrono::duration<double>(time).count());
}

std::string UuidText(const std::string& bytes) {
  cuda::CUuuid uuid = {};
  static_assert(sizeof(uuid.bytes) == kGpuUuidBytes);
  std::copy_n(bytes.begin(), kGpuUuidBytes, uuid.bytes);
  return cuda::UuidText(uuid);
}

std::string Cut(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t n = max_bytes;
  // At most three bytes follow a character's first one; other text is cut there.
  while (n > 0 && n + 3 > max_bytes &&
         (static_cast<unsigned char>(text[n]) & 0xc0) == 0x80) {
    --n;
  }
  return std::string(text.substr(0, n));
}

}  // namespace maypole::coordinator
