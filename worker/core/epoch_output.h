// EpochOutput: takes the actions of an epoch's parts (executor_epoch.h), and
// their messages to the coordinator, in which it sets the epoch.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_EPOCH_OUTPUT_H_
#define MAYPOLE_WORKER_CORE_EPOCH_OUTPUT_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"
#include "worker/core/coordinator_link.h"

namespace maypole::worker {

class EpochOutput {
 public:
  // Both must outlive this object.
  EpochOutput(uint64_t epoch, CoordinatorLink* link,
              std::vector<Action>* actions)
      : epoch_(epoch), link_(*link), actions_(*actions) {}

  void Add(Action action) { actions_.push_back(std::move(action)); }
  // Drops the message if the output is quiet.
  void Send(proto::ExecutorMessage message) {
    message.set_epoch(epoch_);
    link_.Send(std::move(message));
  }
  // True while a coordinator that has replaced another learns the epoch.
  bool quiet() const { return link_.recovering(); }

 private:
  const uint64_t epoch_;
  CoordinatorLink& link_;
  std::vector<Action>& actions_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_EPOCH_OUTPUT_H_
