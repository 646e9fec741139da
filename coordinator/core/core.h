// Core: the coordinator's brain, a pure state machine over all jobs.
//
// Purpose: knows the sessions (one per executor, over any number of streams)
// and hands their messages to their jobs. No threads, sockets or clock: every
// event carries the time at which it happened, every method appends the actions
// that follow to `actions`, to be carried out in order.
//
//   Core core(config, "5f2c...");
//   Actions actions;
//   core.Received(now, stream, message, &actions);   // a stream's first one
//   ...                                              // must be a hello
//   if (core.Deadline() <= now) core.Passed(now, &actions);
//   core.Ended(now, stream, StreamEnd::kBroken, &actions);
//
//   a session is   how it gets there            what follows
//   connected      hello                        messages flow
//   detached       its stream broke             messages are kept; after
//                                               resume_timeout it is lost
//   lost           timeout, protocol broken,    its job ends what needs it; a
//                  does not acknowledge         resume is refused
//   (forgotten)    finished its stream with     nothing
//                  no ranks in epoch or start
//
// Thread contract: not synchronized.
//
// Invariants: a job exists as long as it has sessions; a stream belongs to at
// most one session and is forgotten with Close.
#ifndef MAYPOLE_COORDINATOR_CORE_CORE_H_
#define MAYPOLE_COORDINATOR_CORE_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/link.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/job.h"
#include "coordinator/core/limits.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

enum class StreamEnd {
  kFinished,  // the executor has half-closed it: it does not mean to come back
  kBroken,    // anything else: it may
};

// For gauges.
struct Totals {
  size_t jobs = 0;
  size_t nodes = 0;
  size_t ranks = 0;  // of running epochs, not left
  size_t pending_operations = 0;
  size_t late_ranks = 0;
  size_t late_operations = 0;
};

class Core {
 public:
  // The incarnation tells this coordinator from its predecessor at the same
  // address.
  Core(const Config& config, std::string incarnation);

  void Received(Time now, StreamId stream,
                const proto::ExecutorMessage& message, Actions* actions);
  // Not to be called for streams that the core has closed (it is harmless).
  void Ended(Time now, StreamId stream, StreamEnd end, Actions* actions);
  void Passed(Time now, Actions* actions);
  // The coordinator is about to end: tells all and closes all streams.
  void Stop(Actions* actions);

  // When Passed() must be called at the latest.
  std::optional<Time> Deadline() const;

  Totals totals() const;
  // Of all sessions: how long others have waited for the node since the last
  // call, apart from what actions have told.
  std::vector<NodeLate> TakeLateness(Time now);

  // --- The operator (admin.cc) -----------------------------------------------
  // All but the uptime. An error: there is no such job.
  absl::StatusOr<proto::StatusReply> Status(
      Time now, const proto::StatusRequest& request) const;
  absl::StatusOr<proto::AbortReply> Abort(Time now,
                                          const proto::AbortRequest& request,
                                          Actions* actions);
  // A drained node keeps the jobs that it has now, also if their executors
  // there come anew, and is refused to others.
  absl::StatusOr<proto::DrainReply> Drain(const proto::DrainRequest& request,
                                          Actions* actions);

 private:
  struct Session {
    explicit Session(SessionId i) : id(i), link(kMaxUnacknowledged) {}
    SessionId id;
    Job* job = nullptr;
    std::string node;
    std::string host;
    Link<proto::CoordinatorMessage> link;
    StreamId stream = 0;           // 0: detached
    std::optional<Time> deadline;  // when detached
  };

  void Hello(Time now, StreamId stream, const proto::ExecutorMessage& message,
             Actions* actions);
  absl::Status CheckHello(const proto::ExecutorHello& hello) const;
  absl::Status Resume(StreamId stream, const proto::ExecutorMessage& message,
                      Actions* actions);
  absl::Status Open(StreamId stream, const proto::ExecutorHello& hello,
                    Actions* actions);
  absl::Status CheckDrained(const proto::ExecutorHello& hello) const;
  void Welcome(Session* session, StreamId stream, Actions* actions);
  // `who`: fields of the log line.
  static void Refuse(StreamId stream, const absl::Status& status,
                     absl::string_view who, Actions* actions);
  void Payload(Time now, Session* session,
               const proto::ExecutorMessage& message, Actions* actions);

  // Ends the session: what it breaks in its job, its stream if there is one.
  void Lose(SessionId session, const std::string& how,
            const absl::Status& status, Actions* actions);
  void BreakOff(Session* session, const absl::Status& status, Actions* actions);
  // Carries a job's output to its sessions; loses those that are too far
  // behind.
  void Deliver(JobOutput output, Actions* actions);
  void Note(Level level, const Session& session, absl::string_view event,
            absl::string_view more, Actions* actions) const;
  void Forget(const std::string& job, Actions* actions);
  Job* FindJob(const std::string& id);
  absl::Status UnknownJob(const std::string& id) const;
  std::vector<std::string> JobsOn(const std::string& node) const;

  const Config config_;
  const std::string incarnation_;
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  std::map<SessionId, Session> sessions_;
  std::unordered_map<StreamId, SessionId> streams_;
  SessionId last_session_ = 0;
  // By node: the jobs that it keeps.
  std::map<std::string, std::set<std::string>> drained_;
  Time now_{};  // of the event under way
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_CORE_H_
