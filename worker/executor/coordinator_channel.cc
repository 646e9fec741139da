#include "worker/executor/coordinator_channel.h"

#include <utility>

#include "absl/status/status.h"

namespace maypole::worker {

void CoordinatorChannel::Do(OpenLink&) {
  transport_.reset();
  presence_sequence_ = 0;
  transport_ = system_.OpenTransport(Callbacks());
}

TransportCallbacks CoordinatorChannel::Callbacks() {
  const LoopPoster::Post post = poster_.Renew();
  TransportCallbacks callbacks;
  callbacks.on_message = [this, post](proto::CoordinatorMessage message) {
    post([this, message = std::move(message)] {
      timeline_.OnTime(system_.NowNs());
      if (!timeline_.OnCoordinator(message)) core_.OnCoordinator(message);
    });
  };
  callbacks.on_acknowledged = [this, post](uint64_t sequence) {
    post([this, sequence] {
      if (presence_sequence_ == 0 || sequence < presence_sequence_) return;
      presence_sequence_ = 0;
      core_.OnPresenceAcknowledged();
      do_actions_();  // the next Presence must not be taken for this one
    });
  };
  callbacks.on_away = [this, post](absl::Status status) {
    post([this, status = std::move(status)] {
      observer_.OnCoordinatorAway(status);
      core_.OnCoordinatorAway(status);
    });
  };
  callbacks.on_reconnected = [this, post] {
    post([this] {
      observer_.OnCoordinatorBack();
      core_.OnCoordinatorBack();
    });
  };
  callbacks.on_replaced = [this, post] {
    post([this] {
      observer_.OnCoordinatorBack();
      presence_sequence_ = 0;
      core_.OnCoordinatorReplaced();
      do_actions_();  // the node's state must be sent before what follows
      timeline_.OnCoordinatorReplaced();
    });
  };
  callbacks.on_lost = [this, post](absl::Status status) {
    post([this, status = std::move(status)] {
      observer_.OnCoordinatorLost(status);
      transport_.reset();
      core_.OnLinkLost(status);
    });
  };
  return callbacks;
}

void CoordinatorChannel::Do(CloseLink&) {
  observer_.OnCoordinatorLost(
      absl::UnavailableError("ranks have waited for it for too long"));
  transport_.reset();
}

void CoordinatorChannel::Do(SendToCoordinator& a) {
  if (transport_ == nullptr) return;
  if (a.message.has_node_state()) {
    timeline_.WriteState(a.message.mutable_node_state());
  }
  const bool presence = a.message.has_presence();
  if (presence) {
    const int operations = a.message.presence().operations_size();
    if (timeline_.recording()) {
      timeline_.OnPresence(static_cast<uint32_t>(operations), system_.NowNs());
    }
    observer_.OnPresenceSent(static_cast<uint64_t>(operations));
  }
  const uint64_t sequence = transport_->Send(std::move(a.message));
  if (presence) presence_sequence_ = sequence;
}

void CoordinatorChannel::Do(TakeRelayed& a) {
  if (transport_ == nullptr) return;
  transport_->TakeRelayed(a.incarnation, std::move(a.message));
}

void CoordinatorChannel::Send(proto::ExecutorMessage message) {
  if (transport_ != nullptr) transport_->Send(std::move(message));
}

}  // namespace maypole::worker
