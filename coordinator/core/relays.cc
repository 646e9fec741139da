#include "coordinator/core/relays.h"

#include "coordinator/core/limits.h"

namespace maypole::coordinator {

Relays::Relays(uint64_t epoch, std::vector<SessionId> nodes, uint32_t fan_out,
               std::string incarnation)
    : epoch_(epoch),
      nodes_(std::move(nodes)),
      fan_out_(fan_out),
      incarnation_(std::move(incarnation)) {
  for (size_t i = 0; i < nodes_.size(); ++i) node_of_.emplace(nodes_[i], i);
}

bool Relays::Take(SessionId session, const Outgoing& message) {
  const auto node = node_of_.find(session);
  if (!active() || node == node_of_.end() || !message.IsShared() ||
      message.Body()->size() > kMaxRelayedBytes) {
    return false;
  }
  const auto [it, is_new] =
      group_of_.emplace(message.Body().get(), groups_.size());
  if (is_new) groups_.push_back({message, {}});
  groups_[it->second].nodes.emplace_back(node->second, message);
  return true;
}

std::vector<std::pair<SessionId, Outgoing>> Relays::TakeMessages(Time now) {
  std::vector<std::pair<SessionId, Outgoing>> messages;
  for (const Group& group : groups_) {
    // The root itself would send this many.
    if (group.nodes.size() <= fan_out_) {
      for (const auto& [node, m] : group.nodes) {
        messages.emplace_back(nodes_[node], m);
      }
      continue;
    }
    messages.emplace_back(nodes_.front(), Relayed(group));
    if (check_at_) continue;
    check_at_ = now + kRelayPatience;
    check_.assign(nodes_.size(), 0);
    for (const auto& [node, m] : group.nodes) check_[node] = m.sequence();
  }
  groups_.clear();
  group_of_.clear();
  return messages;
}

Outgoing Relays::Relayed(const Group& group) const {
  proto::CoordinatorMessage message;
  proto::Relayed* relayed = message.mutable_relayed();
  relayed->set_epoch(epoch_);
  relayed->set_incarnation(incarnation_);
  Outgoing bare = group.message;
  bare.set_sequence(0);
  bare.set_acknowledged(0);
  relayed->set_message(bare.Head() + *bare.Body());
  relayed->mutable_sequences()->Resize(static_cast<int>(nodes_.size()), 0);
  relayed->mutable_acknowledged()->Resize(static_cast<int>(nodes_.size()), 0);
  for (const auto& [node, m] : group.nodes) {
    relayed->set_sequences(static_cast<int>(node), m.sequence());
    relayed->set_acknowledged(static_cast<int>(node), m.acknowledged());
  }
  return message;
}

std::optional<size_t> Relays::Late(const Acknowledged& acknowledged) const {
  for (size_t i = 0; i < check_.size(); ++i) {
    if (check_[i] != 0 && acknowledged(nodes_[i]) < check_[i]) return i;
  }
  return std::nullopt;
}

void Relays::Pause(Time now) {
  resume_at_ = now + kRelayPause;
  check_at_.reset();
}

}  // namespace maypole::coordinator
