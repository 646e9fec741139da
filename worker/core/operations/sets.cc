#include "worker/core/operations/sets.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace maypole::worker {

std::string NodeSet::RanksText() const {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks, ","));
}

SetTable::SetTable(std::vector<uint32_t> node_of_rank,
                   std::vector<int> local_ranks)
    : node_of_rank_(std::move(node_of_rank)),
      local_ranks_(std::move(local_ranks)) {
  std::vector<int> everybody(node_of_rank_.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  sets_[0] = Make(0, everybody);
}

SharedSet SetTable::Make(uint32_t id, const std::vector<int>& ranks) const {
  auto set = std::make_shared<NodeSet>();
  set->id = id;
  set->ranks = ranks;
  for (const int rank : ranks) {
    set->node_of.push_back(node_of_rank_[static_cast<size_t>(rank)]);
  }
  for (uint32_t i = 0; i < local_ranks_.size(); ++i) {
    if (!set->Has(local_ranks_[i])) continue;
    set->locals.push_back(i);
    set->here.push_back(local_ranks_[i]);
  }
  set->nodes = set->node_of;
  std::sort(set->nodes.begin(), set->nodes.end());
  set->nodes.erase(std::unique(set->nodes.begin(), set->nodes.end()),
                   set->nodes.end());
  return set;
}

absl::Status SetTable::Add(uint32_t id, const std::vector<int>& ranks) {
  const bool ascends =
      std::adjacent_find(ranks.begin(), ranks.end(),
                         std::greater_equal<int>()) == ranks.end();
  if (id <= last_id_ || id > kMaxProcessSets || ranks.empty() || !ascends ||
      ranks.front() < 0 ||
      static_cast<size_t>(ranks.back()) >= node_of_rank_.size()) {
    return absl::InternalError(absl::StrCat(
        "the coordinator has made a process set that is invalid: ", id,
        " of ranks ", absl::StrJoin(ranks, ","),
        "; this is a bug in Maypole, please report it"));
  }
  last_id_ = id;
  sets_[id] = Make(id, ranks);
  return absl::OkStatus();
}

void SetTable::Remove(uint32_t id) {
  if (id == 0) return;
  if (auto set = sets_.extract(id); !set.empty()) {
    removed_.insert(std::move(set));
  }
}

void SetTable::ForEach(
    const std::function<void(const NodeSet& set, bool removed)>& use) const {
  for (uint32_t id = 0; id <= last_id_; ++id) {
    if (const auto it = sets_.find(id); it != sets_.end()) {
      use(*it->second, /*removed=*/false);
    } else if (const auto gone = removed_.find(id); gone != removed_.end()) {
      use(*gone->second, /*removed=*/true);
    }
  }
}

SharedSet SetTable::Find(uint32_t id) const {
  const auto it = sets_.find(id);
  return it == sets_.end() ? nullptr : it->second;
}

absl::StatusOr<SharedSet> SetTable::Get(uint32_t id) const {
  if (SharedSet set = Find(id)) return set;
  return absl::InvalidArgumentError(absl::StrCat(
      "process set ", id,
      id <= last_id_ ? " has been removed"
                     : " does not exist; every rank must create it first"));
}

}  // namespace maypole::worker
