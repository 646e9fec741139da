#include "coordinator/core/membership/departures.h"

#include "absl/strings/str_cat.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership/process_sets.h"

namespace maypole::coordinator {

void Departures::OnLeft(uint32_t rank) {
  ranks_.push_back(rank);
  has_left_[rank] = true;
  new_.push_back(rank);
  if (ranks_.size() <= kLeavesToldAtOnce || AllLeft()) AnnounceNew();
}

void Departures::Restore(const std::set<uint32_t>& ranks) {
  ranks_.assign(ranks.begin(), ranks.end());
  for (const uint32_t rank : ranks) has_left_[rank] = true;
}

std::optional<Time> Departures::Deadline() const {
  if (new_.empty()) return std::nullopt;
  return announced_at_ + kLeavePause;
}

void Departures::OnTime(Time now) {
  if (new_.empty() || *Deadline() > now) return;
  AnnounceNew();
  announced_at_ = now;
}

void Departures::AnnounceNew() {
  nodes_.SendAll(MessageOf(new_));
  new_.clear();
}

Outgoing Departures::MessageOf(const std::vector<uint32_t>& ranks) const {
  proto::CoordinatorMessage message;
  proto::RankLeft* m = message.mutable_rank_left();
  m->set_rank(ranks.front());
  m->mutable_others()->Assign(ranks.begin() + 1, ranks.end());
  m->set_message(
      absl::StrCat(nodes_.RankText(ranks.front()),
                   " has shut down; operations that need it cannot run"));
  return message;
}

std::optional<uint32_t> Departures::FirstOf(const RankSet& set) const {
  for (const uint32_t rank : ranks_) {
    if (set.Has(rank)) return rank;
  }
  return std::nullopt;
}

std::vector<uint32_t> Departures::LiveRanks(size_t node) const {
  std::vector<uint32_t> live;
  for (const uint32_t rank : nodes_[node].ranks) {
    if (!Has(rank)) live.push_back(rank);
  }
  return live;
}

}  // namespace maypole::coordinator
