#include "worker/core/left_ranks.h"

#include "absl/strings/str_cat.h"

namespace maypole::worker {

bool LeftRanks::Add(int rank) {
  if (!ranks_.insert(rank).second) return false;
  if (ranks_.size() == 1) first_ = rank;
  return true;
}

int LeftRanks::MemberOf(const NodeSet& set) const {
  for (const int rank : ranks_) {
    if (set.Has(rank)) return rank;
  }
  return -1;
}

std::string LeftRanks::Text(int rank) const {
  const std::string* node = info_.NodeOf(rank);
  return absl::StrCat(
      "rank ", rank, node == nullptr ? "" : absl::StrCat(" (node ", *node, ")"),
      " has shut down; operations that need it cannot run");
}

std::string LeftRanks::AfterText() const {
  const std::string* node = first_ < 0 ? nullptr : info_.NodeOf(first_);
  if (node == nullptr) return "";
  return absl::StrCat(" (after rank ", first_, " (node ", *node,
                      ") had shut down)");
}

}  // namespace maypole::worker
