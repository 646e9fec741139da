#include "coordinator/core/membership/epoch_nodes.h"

#include <algorithm>

namespace maypole::coordinator {

EpochNodes::EpochNodes(uint64_t epoch, std::string job,
                       std::vector<NodeMember> members, JobOutput* output)
    : out(*output),
      epoch_(epoch),
      job_(std::move(job)),
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
  return std::find(connected_.begin(), connected_.end(), false) ==
         connected_.end();
}

std::string EpochNodes::RankText(uint32_t rank) const {
  for (const NodeMember& m : members_) {
    if (m.HasRank(rank)) {
      return absl::StrCat("rank ", rank, " (node ", m.node, ")");
    }
  }
  return absl::StrCat("rank ", rank);
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
  out.messages.emplace_back(members_[node].session, std::move(message));
}

std::string EpochNodes::LogPrefix(absl::string_view event) const {
  return absl::StrCat("event=", event, " job=", job_, " epoch=", epoch_);
}

}  // namespace maypole::coordinator
