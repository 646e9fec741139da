// Hub: the core under its lock, with a clock and with streams to act on.
//
// Purpose: the shell around the pure core. Handler threads bring events, a
// timer thread brings the passing of time; the core's actions are carried out
// under the same lock, so that messages reach the streams' queues in the order
// the core gave. Log lines go into the events under it, and are written after
// it is released: a slow stderr holds up one thread, not all jobs.
//
// Thread contract: all methods from any thread. No method blocks for a peer.
//
// Invariants: the core knows only streams that are in streams_.
#ifndef MAYPOLE_COORDINATOR_SERVICE_HUB_H_
#define MAYPOLE_COORDINATOR_SERVICE_HUB_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/core.h"
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

  // The writer must stay until Remove() has returned.
  absl::StatusOr<StreamId> Add(StreamWriter* writer);
  void Received(StreamId stream, const proto::ExecutorMessage& message);
  // The stream has ended and its writer goes away.
  void Remove(StreamId stream, StreamEnd end);

  // Tells all executors that the coordinator ends, and closes their streams and
  // the events. New streams are refused from now on.
  void Stop();

  Totals totals() const;
  // See Core.
  std::vector<NodeLate> TakeLateness();

  // See proto/admin.proto.
  absl::StatusOr<proto::StatusReply> Status(
      const proto::StatusRequest& request) const;
  absl::StatusOr<proto::AbortReply> Abort(const proto::AbortRequest& request);
  absl::StatusOr<proto::DrainReply> Drain(const proto::DrainRequest& request);
  EventLog* events() { return &events_; }

 private:
  // Runs `event` on the core and carries out what follows.
  void Do(const std::function<void(Time, Actions*)>& event);
  void Apply(Actions* actions);
  void RunTimer();

  Metrics* const metrics_;
  const Time started_;
  EventLog events_;
  mutable std::mutex mutex_;
  std::condition_variable deadline_changed_;
  Core core_;
  std::unordered_map<StreamId, StreamWriter*> streams_;
  StreamId last_stream_ = 0;
  std::optional<Time> deadline_;
  std::optional<Time> timer_waits_for_;  // none: until it is woken
  bool stopped_ = false;
  bool timer_ends_ = false;
  std::thread timer_;  // last: starts when all else is there
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_HUB_H_
