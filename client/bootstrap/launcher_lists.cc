// ExpandHosts and ExpandCounts: the lists in Slurm's variables.
#include <algorithm>
#include <limits>

#include "client/bootstrap/launcher_info.h"
#include "common/limits.h"
#include "common/parse.h"

namespace maypole {
namespace {

Status Bad(std::string_view list, const char* what) {
  return Status(Code::kInvalidArgument, "'" + std::string(list) + "': " + what);
}

bool ParseCount(std::string_view text, int* out) {
  return ParseNumber(text, 0, std::numeric_limits<int>::max(), out);
}

// Removes the text up to the next comma outside brackets from `rest` and
// returns it.
std::string_view TakeEntry(std::string_view* rest) {
  int depth = 0;
  size_t i = 0;
  for (; i < rest->size() && ((*rest)[i] != ',' || depth > 0); ++i) {
    if ((*rest)[i] == '[') ++depth;
    if ((*rest)[i] == ']') --depth;
  }
  const std::string_view entry = rest->substr(0, i);
  rest->remove_prefix(std::min(rest->size(), i + 1));
  return entry;
}

// Expands "07" or "1-3" from between brackets. The numbers are padded with
// zeros to the width of the first.
bool ExpandRange(std::string_view range, std::vector<std::string>* out) {
  const size_t dash = range.find('-');
  const std::string_view low = range.substr(0, dash);
  const std::string_view high =
      dash == std::string_view::npos ? low : range.substr(dash + 1);
  int first = 0, last = 0;
  if (!ParseCount(low, &first) || !ParseCount(high, &last) || first > last ||
      last - first >= kMaxRanks) {
    return false;
  }
  for (int n = first; n <= last; ++n) {
    std::string digits = std::to_string(n);
    if (digits.size() < low.size()) {
      digits.insert(0, low.size() - digits.size(), '0');
    }
    out->push_back(digits);
  }
  return true;
}

// Expands one entry, which may have several brackets ("r[1-2]n[1-4]").
bool ExpandEntry(std::string_view entry, std::vector<std::string>* out) {
  const size_t open = entry.find('[');
  if (open == std::string_view::npos) {
    out->emplace_back(entry);
    return entry.find(']') == std::string_view::npos;
  }
  const size_t close = entry.find(']', open);
  if (close == std::string_view::npos) return false;
  std::vector<std::string> middles, ends;
  std::string_view ranges = entry.substr(open + 1, close - open - 1);
  if (ranges.empty()) return false;
  while (!ranges.empty()) {
    if (!ExpandRange(TakeEntry(&ranges), &middles)) return false;
  }
  if (!ExpandEntry(entry.substr(close + 1), &ends)) return false;
  for (const std::string& middle : middles) {
    for (const std::string& end : ends) {
      if (out->size() > static_cast<size_t>(kMaxRanks)) return false;
      out->push_back(std::string(entry.substr(0, open)) + middle + end);
    }
  }
  return true;
}

}  // namespace

Status ExpandHosts(std::string_view list, std::vector<std::string>* out) {
  out->clear();
  if (list.empty()) return Bad(list, "a list of hosts is expected");
  for (std::string_view rest = list; !rest.empty();) {
    const std::string_view entry = TakeEntry(&rest);
    if (entry.empty() || !ExpandEntry(entry, out) ||
        out->size() > static_cast<size_t>(kMaxRanks)) {
      return Bad(list, "expected a list of hosts in Slurm's format");
    }
  }
  return Status();
}

Status ExpandCounts(std::string_view list, std::vector<int>* out) {
  out->clear();
  for (std::string_view rest = list; !rest.empty();) {
    std::string_view entry = TakeEntry(&rest);
    int count = 0, times = 1;
    const size_t open = entry.find("(x");
    bool good = true;
    if (open != std::string_view::npos) {
      good =
          entry.back() == ')' &&
          ParseCount(entry.substr(open + 2, entry.size() - open - 3), &times);
      entry = entry.substr(0, open);
    }
    if (!good || !ParseCount(entry, &count) || times < 1 ||
        out->size() + static_cast<size_t>(times) >
            static_cast<size_t>(kMaxRanks)) {
      return Bad(list, "expected a list of numbers in Slurm's format");
    }
    out->insert(out->end(), static_cast<size_t>(times), count);
  }
  if (out->empty()) return Bad(list, "a list of numbers is expected");
  return Status();
}

}  // namespace maypole
