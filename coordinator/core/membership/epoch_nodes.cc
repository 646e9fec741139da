#include "coordinator/core/membership/epoch_nodes.h"

#include <algorithm>

namespace maypole::coordinator {

EpochNodes::EpochNodes(uint64_t epoch, std::string job,
                       std::vector<NodeMember> members, JobOutput* output)
    : JobLog(std::move(job), epoch, output),
      members_(std::move(members)),
      connected_(members_.size(), true),
      sent_(members_.size(), 0) {
  for (size_t i = 0; i < size(); ++i) index_.emplace(members_[i].session, i);
}

std::optional<size_t> EpochNodes::IndexOf(SessionId session) const {
  const auto it = index_.find(session);
  if (it == index_.end() || !connected_[it->second]) return std::nullopt;
  return it->second;
}

bool EpochNodes::AllConnected() const {
  return std::ranges::find(connected_, false) == connected_.end();
}

std::optional<size_t> EpochNodes::NodeOf(uint32_t rank) const {
  for (size_t i = 0; i < size(); ++i) {
    if (members_[i].HasRank(rank)) return i;
  }
  return std::nullopt;
}

std::string EpochNodes::RankText(uint32_t rank) const {
  const std::optional<size_t> node = NodeOf(rank);
  if (!node) return absl::StrCat("rank ", rank);
  return absl::StrCat("rank ", rank, " (node ", members_[*node].node, ")");
}

void EpochNodes::Send(size_t node, Outgoing message) {
  if (!connected_[node]) return;
  ++sent_[node];
  SendUncounted(node, std::move(message));
}

void EpochNodes::SendAll(const Outgoing& message) {
  for (size_t i = 0; i < size(); ++i) Send(i, message);
}

void EpochNodes::SendUncounted(size_t node, Outgoing message) {
  if (!connected_[node]) return;
  message.set_epoch(epoch_);
  output_.messages.emplace_back(members_[node].session, std::move(message));
}

void EpochNodes::SendAllUncounted(const Outgoing& message) {
  for (size_t i = 0; i < size(); ++i) SendUncounted(i, message);
}

}  // namespace maypole::coordinator
