// CoordinatorCore: the coordinator's brain, a state machine over all jobs.
//
// Purpose: hands the messages of streams to their jobs (job_shard.h). No
// threads, sockets or clock: every event carries the time at which it happened,
// and `carry` is given the actions that follow, to be carried out in order.
//
//   CoordinatorCore core(config, "5f2c...");
//   const auto carry = [](Actions* actions) { ... };
//   core.Received(now, stream, message, carry);      // a stream's first one
//   ...                                              // must be a hello
//   if (core.Deadline() <= now) core.Passed(now, carry);
//   core.Ended(now, stream, StreamEnd::kBroken, carry);
//
// Jobs do not pay for each other: an event locks its job and no other, and
// costs the same however many there are. What they share (directory.h,
// deadlines.h) is locked for look-ups.
//
// Thread contract: all methods from any thread. `carry` is called once for each
// job that the event concerns, while that job is locked, so that the actions of
// a job are carried out in the order in which it gave them; it must not call
// the core for the same job, nor block for long. Driven by one thread, the core
// is deterministic.
//
// Invariants: locks are taken in the order job, then directory or deadlines;
// never two jobs at a time. A job exists as long as it has sessions.
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

  // The incarnation tells this coordinator from its predecessor at the same
  // address.
  CoordinatorCore(const Config& config, std::string incarnation);

  // What comes from a stream that the core has closed means nothing.
  void Received(Time now, StreamId stream,
                const proto::ExecutorMessage& message, Carry carry);
  // Last of a stream, also of one that the core has closed.
  void Ended(Time now, StreamId stream, StreamEnd end, Carry carry);
  void Passed(Time now, Carry carry);
  // The coordinator is about to end: tells all and closes all streams.
  void Stop(Carry carry);

  // When Passed() must be called at the latest.
  std::optional<Time> Deadline() const { return deadlines_.First(); }

  Totals totals() const;
  // Of all sessions: how long others have waited for the node since the last
  // call, apart from what actions have told.
  std::vector<StragglerNode> TakeStragglerTime(Time now);

  // --- The operator (admin.cc) -----------------------------------------------
  // All but the uptime. An error: there is no such job.
  absl::StatusOr<proto::StatusReply> Status(
      Time now, const proto::StatusRequest& request) const;
  absl::StatusOr<proto::AbortReply> Abort(Time now,
                                          const proto::AbortRequest& request,
                                          Carry carry);
  absl::StatusOr<proto::DrainReply> Drain(const proto::DrainRequest& request,
                                          Carry carry);

  // How many jobs the events so far have looked at, for tests: an event's cost
  // does not depend on the number of jobs.
  uint64_t jobs_visited() const { return jobs_visited_; }

 private:
  using Entry = std::shared_ptr<JobEntry>;

  // Runs `event` on the locked job and carries out what follows.
  void Do(const Entry& job, Carry carry,
          absl::FunctionRef<void(JobShard*, Actions*)> event);
  // What the job's streams, places and deadline have become.
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
