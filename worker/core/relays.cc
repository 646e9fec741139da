#include "worker/core/relays.h"

#include <utility>

namespace maypole::worker {

Relays::Relays(const EpochInfo& info, EpochOutput* output)
    : epoch_(info.epoch), self_(info.node_index), output_(*output) {
  if (info.relay_fan_out == 0 || !info.several_nodes()) return;
  tree_.emplace(self_, static_cast<uint32_t>(info.nodes.size()),
                info.relay_fan_out);
  awaited_.insert(tree_->children.begin(), tree_->children.end());
  awaited_.insert(self_);
}

void Relays::OnReady(uint32_t node) {
  if (awaited_.erase(node) > 0 && awaited_.empty()) ReportReady();
}

void Relays::ReportReady() {
  if (tree_->parent) {
    SendToPeers send{{*tree_->parent}, {}};
    send.message.set_below_ready(true);
    output_.Add(std::move(send));
    return;
  }
  proto::ExecutorMessage message;
  message.mutable_relays_ready();
  output_.Send(std::move(message));
}

void Relays::OnRecovered() {
  if (tree_ && awaited_.empty() && !tree_->parent) ReportReady();
}

// Drops messages of an epoch that is over on this node. The coordinator learns
// that it is over, and sends again whatever is not acknowledged.
void Relays::OnRelayed(const proto::Relayed& relayed) {
  if (!tree_ || relayed.epoch() != epoch_) return;
  if (!tree_->children.empty()) {
    SendToPeers send{tree_->children, {}};
    *send.message.mutable_relayed() = relayed;
    output_.Add(std::move(send));
  }
  const int self = static_cast<int>(self_);
  if (self >= relayed.sequences_size() || relayed.sequences(self) == 0) return;
  TakeRelayed take{relayed.incarnation(), {}};
  // If it is malformed, the coordinator sends it again over the stream.
  if (!take.message.ParseFromString(relayed.message())) return;
  take.message.set_sequence(relayed.sequences(self));
  if (self < relayed.acknowledged_size()) {
    take.message.set_acknowledged(relayed.acknowledged(self));
  }
  output_.Add(std::move(take));
}

}  // namespace maypole::worker
