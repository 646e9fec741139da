// LastEpoch: what a coordinator that replaces another must learn about this
// node's last epoch, including how it has ended here (docs/recovery.md).
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_LAST_EPOCH_H_
#define MAYPOLE_WORKER_CORE_LAST_EPOCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"
#include "worker/core/operations/decisions.h"

namespace maypole::worker {

class LastEpoch {
 public:
  void Begin(const proto::EpochStart& start);
  // Takes the decisions in any message of the coordinator.
  void Take(const proto::CoordinatorMessage& message) {
    decisions_.Take(message);
  }
  // Keeps a RankGone of this epoch; ignores those of other epochs.
  void AddGone(const proto::ExecutorMessage& message);
  void SetEndpoint(const proto::ExecutorMessage& message) {
    endpoint_ = message;
  }
  // The coordinator has sent the epoch's Endpoints.
  void SetConnected() { connected_ = true; }
  // Of several reasons, the first counts.
  void End(const absl::Status& why);

  const proto::EpochStart& start() const { return start_; }
  uint64_t epoch() const { return start_.epoch(); }  // 0: there was none
  const std::optional<absl::Status>& end() const { return end_; }
  const std::vector<proto::ExecutorMessage>& gone() const { return gone_; }
  // True if a rank has trained to the end, in this epoch or an earlier one.
  bool finished() const;
  const std::optional<proto::ExecutorMessage>& endpoint() const {
    return endpoint_;
  }

  // Returns true if the epoch has not ended here: then the caller adds what it
  // knows of the epoch.
  bool FillState(proto::NodeState* state) const;

 private:
  DecisionLog decisions_;
  proto::EpochStart start_;
  std::optional<absl::Status> end_;
  std::vector<proto::ExecutorMessage> gone_;
  std::optional<proto::ExecutorMessage> endpoint_;  // as sent
  bool connected_ = false;  // has its Endpoints, or needs none
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LAST_EPOCH_H_
