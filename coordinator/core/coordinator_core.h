// CoordinatorCore: all decisions of the coordinator, as a state machine over
// all jobs.
//
// Purpose: passes the messages of streams to their jobs (job_shard.h). Uses no
// threads, sockets or clock: every event carries the time at which it happened,
// and the caller's `carry` receives the resulting actions and carries them out
// in order.
//
//   CoordinatorCore core(config, "5f2c...");
//   const auto carry = [](Actions* actions) { ... };
//   core.Received(now, stream, message, carry);      // a stream's first one
//   ...                                              // must be a hello
//   if (core.Deadline() <= now) core.Passed(now, carry);
//   core.Ended(now, stream, StreamEnd::kBroken, carry);
//
// Jobs do not slow each other down: an event locks only its own job, and its
// cost does not depend on the number of jobs. What jobs share (directory.h,
// deadlines.h) is locked only for look-ups.
//
// Thread contract: any thread may call any method. The core calls `carry` once
// for each job that the event concerns, while that job is locked, so that the
// actions of a job are carried out in order. `carry` must not call the core for
// the same job, nor block for long. If only one thread calls it, the core is
// deterministic.
//
// Invariants: a thread locks a job first, then the directory or the deadlines;
// it never locks two jobs at a time. A job exists as long as it has sessions.
#ifndef MAYPOLE_COORDINATOR_CORE_COORDINATOR_CORE_H_
#define MAYPOLE_COORDINATOR_CORE_COORDINATOR_CORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/deadlines.h"
#include "coordinator/core/directory.h"
#include "coordinator/core/job_shard.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

class CoordinatorCore {
 public:
  using Carry = absl::FunctionRef<void(Actions*)>;

  // The incarnation distinguishes this coordinator from a predecessor at the
  // same address.
  CoordinatorCore(const Config& config, std::string incarnation);

  // Messages of a stream that the core has closed are ignored.
  void Received(Time now, StreamId stream,
                const proto::ExecutorMessage& message, Carry carry);
  // The last call for every stream, even for one that the core has closed.
  void Ended(Time now, StreamId stream, StreamEnd end, Carry carry);
  // Handles all jobs whose deadline has passed.
  void Passed(Time now, Carry carry);
  // The coordinator is about to end: tells all executors and closes all
  // streams.
  void Stop(Carry carry);

  // The time by which Passed() must be called; nullopt if no job has a
  // deadline.
  std::optional<Time> Deadline() const { return deadlines_.First(); }

  Totals totals() const;
  // For every session: how long other nodes have waited for its node since the
  // last call, except what StragglerNode actions have reported.
  std::vector<StragglerNode> TakeStragglerTime(Time now);

  // --- The operator (admin.cc) -----------------------------------------------
  // Everything except the uptime; an error if there is no such job.
  absl::StatusOr<proto::StatusReply> Status(
      Time now, const proto::StatusRequest& request) const;
  // An operator polls what the job does now; empty: all jobs.
  void Watch(Time now, const std::string& job, Carry carry);
  absl::StatusOr<proto::AbortReply> Abort(Time now,
                                          const proto::AbortRequest& request,
                                          Carry carry);
  absl::StatusOr<proto::DrainReply> Drain(Time now,
                                          const proto::DrainRequest& request,
                                          Carry carry);
  absl::StatusOr<proto::RecordTimelineReply> RecordTimeline(
      Time now, const proto::RecordTimelineRequest& request, Carry carry);

  // For tests: how often events so far have locked a job. It shows that an
  // event's cost does not depend on the number of jobs.
  uint64_t jobs_visited() const { return jobs_visited_; }

 private:
  using Entry = std::shared_ptr<JobEntry>;

  // Runs `event` on the locked job and carries out the resulting actions.
  void Do(const Entry& job, Carry carry,
          absl::FunctionRef<void(JobShard*, Actions*)> event);
  // Runs an operator's `change`; an error if there is no such job.
  absl::Status Change(Time now, const std::string& job, Carry carry,
                      absl::FunctionRef<void(Job*, Time)> change);
  // Updates directory and deadlines after an event of the job.
  void Settle(const Entry& job, Actions* actions);

  void Hello(Time now, StreamId stream, const proto::ExecutorMessage& message,
             Carry carry);
  absl::Status CheckHello(const proto::ExecutorHello& hello) const;
  absl::Status Open(Time now, StreamId stream,
                    const proto::ExecutorHello& hello, Carry carry);
  absl::Status Resume(Time now, StreamId stream,
                      const proto::ExecutorMessage& message, Carry carry);

  const Config config_;
  Directory directory_;
  Deadlines deadlines_;
  std::atomic<SessionId> last_session_{0};
  std::atomic<uint64_t> jobs_visited_{0};
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_COORDINATOR_CORE_H_
