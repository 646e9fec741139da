// Hub: the core with a clock and with streams to act on.
//
// Purpose: the shell around the core. Handler threads bring events, a timer
// thread brings the passing of time; the core's actions are carried out under
// the lock of their job, so that messages reach the streams' queues in the
// order the core gave, and events of other jobs go on meanwhile. Log lines go
// into the events under it, and are written after it is released: a slow stderr
// holds up one thread, not the job.
//
// Thread contract: all methods from any thread. No method blocks for a peer.
//
// Invariants: the core knows only streams that are in streams_. Locks are taken
// in the order of coordinator_core.h, then streams_mutex_ or those of a writer,
// the events and the metrics; timer_mutex_ by who holds no lock of a job.
#ifndef MAYPOLE_COORDINATOR_SERVICE_HUB_H_
#define MAYPOLE_COORDINATOR_SERVICE_HUB_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/service/event_log.h"
#include "coordinator/service/metrics.h"
#include "coordinator/service/stream_writer.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

// Streams at a time; each costs two threads.
inline constexpr size_t kMaxStreams = 8192;

class Hub {
 public:
  // `metrics` outlives the hub.
  Hub(const Config& config, std::string incarnation, Metrics* metrics);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  absl::StatusOr<StreamId> Add(std::shared_ptr<StreamWriter> writer);
  void Received(StreamId stream, const proto::ExecutorMessage& message);
  // The stream has ended.
  void Remove(StreamId stream, StreamEnd end);

  // Tells all executors that the coordinator ends, and closes their streams and
  // the events. New streams are refused from now on.
  void Stop();

  Totals totals() const;
  // See CoordinatorCore.
  std::vector<StragglerNode> TakeStragglerTime();

  // See proto/admin.proto.
  absl::StatusOr<proto::StatusReply> Status(
      const proto::StatusRequest& request) const;
  absl::StatusOr<proto::AbortReply> Abort(const proto::AbortRequest& request);
  absl::StatusOr<proto::DrainReply> Drain(const proto::DrainRequest& request);
  EventLog* events() { return &events_; }

 private:
  // Runs `event` on the core and carries out what follows.
  void Do(const std::function<void(Time, CoordinatorCore::Carry)>& event);
  void Apply(Actions* actions);
  // Null: it has ended.
  std::shared_ptr<StreamWriter> Find(StreamId stream) const;
  // After an event: a deadline may have come before the one it waits for.
  void WakeTimer();
  void RunTimer();

  Metrics* const metrics_;
  const Time started_;
  EventLog events_;
  CoordinatorCore core_;
  mutable std::mutex streams_mutex_;
  std::unordered_map<StreamId, std::shared_ptr<StreamWriter>> streams_;
  StreamId last_stream_ = 0;
  bool stopped_ = false;
  std::mutex timer_mutex_;
  std::condition_variable deadline_changed_;
  std::optional<Time> timer_waits_for_;  // none: until it is woken
  bool timer_ends_ = false;
  std::thread timer_;  // last: starts when all else is there
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_HUB_H_
