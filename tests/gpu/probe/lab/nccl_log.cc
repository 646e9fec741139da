#include "tests/gpu/probe/lab/nccl_log.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace maypole::probe {
namespace {

constexpr absl::string_view kMark = "NCCL WARN ";
constexpr size_t kLongest = 200;  // of one warning

}  // namespace

std::string LastWarnings(std::string_view log, size_t count) {
  std::vector<absl::string_view> warnings;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(log.data(), log.size()), '\n')) {
    const size_t at = line.find(kMark);
    if (at == absl::string_view::npos) continue;
    const absl::string_view text =
        absl::StripAsciiWhitespace(line.substr(at + kMark.size()))
            .substr(0, kLongest);
    if (text.empty()) continue;
    // The last of equal ones counts.
    warnings.erase(std::remove(warnings.begin(), warnings.end(), text),
                   warnings.end());
    warnings.push_back(text);
  }
  const size_t first = warnings.size() - std::min(count, warnings.size());
  return absl::StrJoin(warnings.begin() + static_cast<std::ptrdiff_t>(first),
                       warnings.end(), "; ");
}

}  // namespace maypole::probe
