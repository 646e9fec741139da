// CoordinatorLink: this node's session with the coordinator, as the core sees
// it.
//
// Purpose: drops messages while there is no session, and while a coordinator
// that has replaced another learns what this node knows: the executor reports
// afterwards what is still open (docs/recovery.md). Decides when ranks have
// waited too long for a coordinator that cannot be reached.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_COORDINATOR_LINK_H_
#define MAYPOLE_WORKER_CORE_COORDINATOR_LINK_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"

namespace maypole::worker {

class CoordinatorLink {
 public:
  // `patience_ms`: how long ranks wait for a coordinator that cannot be
  // reached. `actions` must outlive this object.
  CoordinatorLink(int64_t patience_ms, std::vector<Action>* actions)
      : patience_ms_(patience_ms), actions_(*actions) {}

  // Returns false if it was open.
  bool Open() {
    if (open_) return false;
    open_ = true;
    actions_.push_back(OpenLink{});
    return true;
  }
  // The session is permanently lost, or was refused.
  void OnLost() {
    open_ = false;
    recovering_ = false;
    OnBack();
  }
  // OnAway: the coordinator cannot be reached; `why` is for ranks. OnBack: it
  // can be reached again.
  void OnAway(const absl::Status& why) {
    if (open_ && !away_) away_ = why;
  }
  void OnBack() {
    away_.reset();
    waiting_since_ms_.reset();
  }
  // Another coordinator has replaced it, knows nothing, and gets `state`.
  void OnReplaced(proto::ExecutorMessage state) {
    OnBack();
    recovering_ = true;
    actions_.push_back(SendToCoordinator{std::move(state)});
  }
  // The new coordinator has learnt the job. Returns false if none was
  // recovering.
  bool OnRecovered() { return std::exchange(recovering_, false); }

  void Send(proto::ExecutorMessage message) {
    if (!open_ || recovering_) return;
    actions_.push_back(SendToCoordinator{std::move(message)});
  }

  // If ranks have waited too long, closes the session and returns an error,
  // once. `wait`: ranks wait for something that only the coordinator can give.
  absl::Status OnTime(int64_t now_ms, bool wait) {
    if (!away_ || !wait) {
      waiting_since_ms_.reset();
      return absl::OkStatus();
    }
    if (!waiting_since_ms_) waiting_since_ms_ = now_ms;
    if (now_ms - *waiting_since_ms_ < patience_ms_) return absl::OkStatus();
    const absl::Status lost(
        away_->code(),
        absl::StrCat(away_->message(), " (waited for it for ",
                     static_cast<double>(patience_ms_) / 1000, " s)"));
    actions_.push_back(CloseLink{});
    OnLost();
    return lost;
  }

  bool recovering() const { return recovering_; }
  // Why it cannot be reached, if it cannot.
  const std::optional<absl::Status>& away() const { return away_; }

 private:
  const int64_t patience_ms_;
  std::vector<Action>& actions_;
  bool open_ = false;
  bool recovering_ = false;
  std::optional<absl::Status> away_;
  std::optional<int64_t> waiting_since_ms_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_COORDINATOR_LINK_H_
