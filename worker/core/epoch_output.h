// EpochOutput: where the parts of an epoch (executor_epoch.h) put their actions
// and their messages to the coordinator.
//
// Purpose: sets the epoch of each message, and keeps messages back while a
// coordinator that has replaced another learns the epoch: it asks later for
// what is still open (docs/recovery.md).
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_EPOCH_OUTPUT_H_
#define MAYPOLE_WORKER_CORE_EPOCH_OUTPUT_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"

namespace maypole::worker {

class EpochOutput {
 public:
  // `actions` must outlive this object.
  EpochOutput(uint64_t epoch, std::vector<Action>* actions)
      : epoch_(epoch), actions_(*actions) {}

  void Add(Action action) { actions_.push_back(std::move(action)); }
  // Drops the message if the output is quiet.
  void Send(proto::ExecutorMessage message) {
    if (quiet_) return;
    message.set_epoch(epoch_);
    Add(SendToCoordinator{std::move(message)});
  }

  bool quiet() const { return quiet_; }
  void set_quiet(bool quiet) { quiet_ = quiet; }

 private:
  const uint64_t epoch_;
  std::vector<Action>& actions_;
  bool quiet_ = false;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_EPOCH_OUTPUT_H_
