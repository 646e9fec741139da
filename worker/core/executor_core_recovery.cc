// ExecutorCore: a coordinator that cannot be reached, or that has replaced the
// one before (docs/recovery.md).
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/executor_core.h"

namespace maypole::worker {

void ExecutorCore::OnCoordinatorAway(const absl::Status& status) {
  if (link_open_ && !away_) away_ = status;
}

void ExecutorCore::OnCoordinatorBack() {
  away_.reset();
  waiting_since_ms_.reset();
}

bool ExecutorCore::WaitsForCoordinator() const {
  if (phase_ == Phase::kRunning) return epoch_->WaitsForCoordinator();
  if (phase_ == Phase::kReady || phase_ == Phase::kPreparing) return true;
  return gathering_.elastic();
}

void ExecutorCore::CheckCoordinator() {
  if ((away_ || recovering_) && phase_ == Phase::kRunning) {
    epoch_->names().OnCoordinatorMissing(now_ms_);
  }
  if (!away_ || !WaitsForCoordinator()) return waiting_since_ms_.reset();
  if (!waiting_since_ms_) waiting_since_ms_ = now_ms_;
  if (now_ms_ - *waiting_since_ms_ < options_.coordinator_timeout_ms) return;
  const absl::Status lost(
      away_->code(),
      absl::StrCat(away_->message(), " (waited for it for ",
                   static_cast<double>(options_.coordinator_timeout_ms) / 1000,
                   " s)"));
  actions_.push_back(CloseLink{});
  OnLinkLost(lost);
}

void ExecutorCore::NoteEpoch(const proto::EpochStart& start) {
  start_ = start;
  decisions_.BeginEpoch();
  end_.reset();
  // A coordinator that replaces this one must know that the training is over.
  std::erase_if(gone_, [](const proto::ExecutorMessage& m) {
    return !m.rank_gone().finished();
  });
  endpoint_.reset();
  connected_ = start.nodes_size() == 1;
}

void ExecutorCore::NoteEnd(Code code, const std::string& text) {
  if (end_ || start_.epoch() == 0) return;
  end_.emplace();
  end_->set_code(static_cast<int>(code));
  end_->set_message(text);
}

void ExecutorCore::OnCoordinatorReplaced() {
  OnCoordinatorBack();
  recovering_ = true;
  round_ = 0;
  if (epoch_) epoch_->OnCoordinatorReplaced();
  proto::ExecutorMessage message;
  FillState(message.mutable_node_state());
  actions_.push_back(SendToCoordinator{std::move(message)});
}

void ExecutorCore::FillState(proto::NodeState* state) const {
  decisions_.Write(state);
  if (start_.epoch() == 0) return;
  *state->mutable_start() = start_;
  state->set_connected(connected_);
  const bool here = epoch_ && epoch_->info().epoch == start_.epoch();
  if (end_) {
    *state->mutable_end() = *end_;
  } else if (here) {
    epoch_->FillState(state);
  } else {
    state->mutable_end();
  }
}

// Everything is said as if for the first time, the end of the epoch last:
// whatever has ended it is its better reason.
void ExecutorCore::OnRecovered(uint64_t epoch,
                               const proto::Recovered& recovered) {
  if (!recovering_) return;
  recovering_ = false;
  const bool here = epoch_ && epoch_->info().epoch == epoch;
  if (here) epoch_->watch().CountHandled();
  for (const proto::ExecutorMessage& gone : gone_) Send(gone);
  if (end_ && end_->code() != 0) {
    SendFailed(start_.epoch(),
               absl::Status(static_cast<absl::StatusCode>(end_->code()),
                            end_->message()));
  }
  if (endpoint_ && (recovered.endpoints() || phase_ == Phase::kPreparing)) {
    Send(*endpoint_);
  }
  if (gathering_.elastic() || told_of_elastic_) {
    SayWaiting();
  } else if (phase_ == Phase::kReady) {
    SayReady();
  } else if (phase_ == Phase::kIdle && !gathering_.empty()) {
    SendWaiting(gathering_);
  }
  if (!epoch_ || phase_ == Phase::kEnded) return;
  if (relays_ && relays_->ready() && !relays_->tree().parent) SayRelaysReady();
  epoch_->OnRecovered(recovered);
}

}  // namespace maypole::worker
