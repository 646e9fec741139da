// Hub: the shell around the core, with a clock and the gRPC streams.
//
// Purpose: handler threads pass events to the core, and a timer thread calls it
// at its deadlines. The Hub carries out the core's actions under the lock of
// their job, so that messages enter the streams' queues in the core's order;
// events of other jobs run in parallel. The queues are written when the lock is
// released: a message to a thousand nodes does not keep the job's next event
// waiting. Log lines are added to the events under that lock but written to
// stderr after it is released: a slow stderr blocks one thread, not the job.
//
// Thread contract: any thread may call any method. No method waits for a peer.
//
// Invariants: the core knows only streams that are in streams_. Locks are taken
// in the order of coordinator_core.h, then streams_mutex_ or the lock of a
// stream, of the events or of the metrics. A thread that takes timer_mutex_
// must not hold a job's lock.
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
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/coordinator_core.h"
#include "coordinator/core/limits.h"
#include "coordinator/election/leadership.h"
#include "coordinator/service/event_log.h"
#include "coordinator/service/metrics.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class SessionStream;

// Streams at a time.
inline constexpr size_t kMaxStreams = 2 * kMaxSessions;

class Hub {
 public:
  // `metrics` and `leadership` must outlive the hub. leadership: null if this
  // coordinator is the only one; otherwise events are handled only while it
  // leads.
  Hub(const Config& config, std::string incarnation, Metrics* metrics,
      const Leadership* leadership = nullptr);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  absl::StatusOr<StreamId> Add(std::shared_ptr<SessionStream> stream);
  void Received(StreamId stream, const proto::ExecutorMessage& message);
  // The stream has ended.
  void Remove(StreamId stream, StreamEnd end);

  // Tells all executors that the coordinator ends, unless another one can lead;
  // ends their streams, and the calls that follow events. New streams are
  // refused from now on.
  void Stop();

  Totals totals() const;
  // See CoordinatorCore.
  std::vector<StragglerNode> TakeStragglerTime();

  // See proto/admin.proto.
  absl::StatusOr<proto::StatusReply> Status(
      const proto::StatusRequest& request);
  // A request that changes something, which only the leader answers; `method`:
  // such as &CoordinatorCore::Abort.
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Order(absl::StatusOr<Reply> (CoordinatorCore::*method)(
                                  Time, const Request&, CoordinatorCore::Carry),
                              const Request& request) {
    if (absl::Status leads = CheckLeads(); !leads.ok()) return leads;
    absl::StatusOr<Reply> reply;
    Do([&](Time now, CoordinatorCore::Carry carry) {
      reply = (core_.*method)(now, request, carry);
    });
    return reply;
  }
  EventLog* events() { return &events_; }
  // True if this coordinator is the only one, or the leader.
  bool Leads() const;
  // The error for a call that only the leader answers; OK if this is the
  // leader.
  absl::Status CheckLeads() const;

 private:
  // Runs `event` on the core and carries out the resulting actions.
  void Do(const std::function<void(Time, CoordinatorCore::Carry)>& event);
  // Adds the streams that have something to write.
  using Streams = std::vector<std::shared_ptr<SessionStream>>;
  void Apply(Actions* actions, Streams* streams);
  // Null if the stream has ended.
  std::shared_ptr<SessionStream> Find(StreamId stream) const;
  // Called after an event, which may have set an earlier deadline than the one
  // for which the timer waits.
  void WakeTimer();
  void RunTimer();

  Metrics* const metrics_;
  const Leadership* const leadership_;
  const Time started_;
  EventLog events_;
  CoordinatorCore core_;
  mutable std::mutex streams_mutex_;
  std::unordered_map<StreamId, std::shared_ptr<SessionStream>> streams_;
  StreamId last_stream_ = 0;
  bool stopped_ = false;
  std::mutex timer_mutex_;
  std::condition_variable deadline_changed_;
  std::optional<Time> timer_waits_for_;  // nullopt: until it is woken
  bool timer_ends_ = false;
  std::thread timer_;  // last, so that it starts after all else is constructed
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_HUB_H_
