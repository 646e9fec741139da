#include "worker/core/last_epoch.h"

#include <algorithm>

namespace maypole::worker {

void LastEpoch::Begin(const proto::EpochStart& start) {
  start_ = start;
  decisions_.BeginEpoch();
  end_.reset();
  // Keeps the ranks that have trained to the end: a coordinator that replaces
  // this one must know that the training is over.
  std::erase_if(gone_, [](const proto::ExecutorMessage& m) {
    return !m.rank_gone().finished();
  });
  endpoint_.reset();
  connected_ = start.nodes_size() == 1;
}

void LastEpoch::AddGone(const proto::ExecutorMessage& message) {
  if (epoch() != 0 && message.epoch() == epoch()) gone_.push_back(message);
}

bool LastEpoch::finished() const {
  return std::any_of(gone_.begin(), gone_.end(),
                     [](const auto& m) { return m.rank_gone().finished(); });
}

void LastEpoch::End(const absl::Status& why) {
  if (!end_ && epoch() != 0) end_ = why;
}

bool LastEpoch::FillState(proto::NodeState* state) const {
  decisions_.Write(state);
  if (epoch() == 0) return false;
  *state->mutable_start() = start_;
  state->set_connected(connected_);
  if (!end_) return true;
  state->mutable_end()->set_code(end_->raw_code());
  state->mutable_end()->set_message(std::string(end_->message()));
  return false;
}

}  // namespace maypole::worker
