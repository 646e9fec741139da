#include "coordinator/core/text.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/gpu/uuid.h"
#include "common/limits.h"

namespace maypole::coordinator {

std::string RanksText(const std::vector<uint32_t>& ranks) {
  const auto more = [](size_t n) { return absl::StrCat(" and ", n, " more"); };
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      ListText(ranks, 16, ",", std::identity(), more));
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
  // At most three bytes follow a character's first one; other text is cut
  // there.
  while (n > 0 && n + 3 > max_bytes &&
         (static_cast<unsigned char>(text[n]) & 0xc0) == 0x80) {
    --n;
  }
  return std::string(text.substr(0, n));
}

}  // namespace maypole::coordinator
