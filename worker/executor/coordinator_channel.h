// CoordinatorChannel: the executor's transport to the coordinator.
//
// Purpose: opens and closes the transport as the core asks, passes its messages
// and events to the core (those of the timeline to the timeline), and tells the
// core when a Presence message is acknowledged.
//
// Thread contract: the executor's loop.
#ifndef MAYPOLE_WORKER_EXECUTOR_COORDINATOR_CHANNEL_H_
#define MAYPOLE_WORKER_EXECUTOR_COORDINATOR_CHANNEL_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "proto/coordinator.pb.h"
#include "worker/core/executor_core.h"
#include "worker/core/timeline/executor_timeline.h"
#include "worker/executor/executor_system.h"
#include "worker/executor/loop_poster.h"

namespace maypole::worker {

class CoordinatorChannel {
 public:
  // All must outlive this object. do_actions: executes the core's actions.
  CoordinatorChannel(ExecutorSystem* system, ExecutorObserver* observer,
                     ExecutorCore* core, ExecutorTimeline* timeline,
                     std::function<void()> do_actions)
      : system_(*system),
        observer_(*observer),
        core_(*core),
        timeline_(*timeline),
        do_actions_(std::move(do_actions)),
        poster_(system) {}

  void Do(OpenLink& a);
  void Do(CloseLink& a);
  void Do(SendToCoordinator& a);
  void Do(TakeRelayed& a);
  // Drops the message if there is no transport.
  void Send(proto::ExecutorMessage message);
  bool open() const { return transport_ != nullptr; }

 private:
  TransportCallbacks Callbacks();

  ExecutorSystem& system_;
  ExecutorObserver& observer_;
  ExecutorCore& core_;
  ExecutorTimeline& timeline_;
  const std::function<void()> do_actions_;
  LoopPoster poster_;
  uint64_t presence_sequence_ = 0;  // unacknowledged Presence, or 0
  // Declared last, because its threads call back.
  std::unique_ptr<Transport> transport_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_COORDINATOR_CHANNEL_H_
