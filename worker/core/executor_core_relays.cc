// ExecutorCore: messages that executors pass on (docs/relays.md).
#include <utility>

#include "worker/core/executor_core.h"

namespace maypole::worker {

void ExecutorCore::BeginRelays() {
  relays_.reset();
  const EpochInfo& info = epoch_->info();
  if (start_.relay_fan_out() == 0 || !info.several_nodes()) return;
  relays_.emplace(info.node_index, static_cast<uint32_t>(info.nodes.size()),
                  start_.relay_fan_out());
  OnRelaysReady(info.node_index);
}

void ExecutorCore::OnRelaysReady(uint32_t node) {
  if (relays_ && relays_->OnReady(node)) SayRelaysReady();
}

void ExecutorCore::SayRelaysReady() {
  if (relays_->tree().parent) {
    SendToPeers send{{*relays_->tree().parent}, {}};
    send.message.set_below_ready(true);
    actions_.push_back(std::move(send));
    return;
  }
  proto::ExecutorMessage message;
  message.set_epoch(epoch_number());
  message.mutable_relays_ready();
  Send(std::move(message));
}

// What is dropped here was sent to an epoch that is over on this node. The
// coordinator hears of that, and sends again what is not acknowledged.
void ExecutorCore::OnRelayed(const proto::Relayed& relayed) {
  if (!relays_ || phase_ != Phase::kRunning ||
      relayed.epoch() != epoch_number()) {
    return;
  }
  if (!relays_->tree().children.empty()) {
    SendToPeers send{relays_->tree().children, {}};
    *send.message.mutable_relayed() = relayed;
    actions_.push_back(std::move(send));
  }
  const int self = static_cast<int>(epoch_->info().node_index);
  if (self >= relayed.sequences_size() || relayed.sequences(self) == 0) return;
  TakeRelayed take{relayed.incarnation(), {}};
  // If it is malformed, the coordinator sends it again over the stream.
  if (!take.message.ParseFromString(relayed.message())) return;
  take.message.set_sequence(relayed.sequences(self));
  if (self < relayed.acknowledged_size()) {
    take.message.set_acknowledged(relayed.acknowledged(self));
  }
  actions_.push_back(std::move(take));
}

}  // namespace maypole::worker
