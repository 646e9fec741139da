// JobShard: one job and the sessions of its executors; a pure state machine.
//
// Purpose: all that the coordinator does for a job is done here, and touches no
// other job: each is driven under a lock of its own (coordinator_core.h).
//
//   JobShard shard("job", "token", config, "5f2c...");
//   absl::Status status = shard.Open(now, stream, id, hello, &actions);
//   shard.Received(now, stream, message, &actions);
//   if (shard.Deadline() <= now) shard.OnTime(now, &actions);
//   shard.Ended(now, stream, StreamEnd::kBroken, &actions);
//   for (const std::string& node : shard.TakeFreed()) ...
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
// Time never goes back for a shard: an event with an earlier time than the one
// before it happens at that one's.
//
// Thread contract: not synchronized; pure.
//
// Invariants: a stream belongs to at most one session and is forgotten with
// Close; detached_ has exactly the sessions without a stream.
#ifndef MAYPOLE_COORDINATOR_CORE_JOB_SHARD_H_
#define MAYPOLE_COORDINATOR_CORE_JOB_SHARD_H_

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/wire/link.h"
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

// Appends what refuses the stream: the reason, its end and a log line with the
// fields `who` (" job=j node=n0").
void Refuse(StreamId stream, const absl::Status& status, absl::string_view who,
            Actions* actions);

// Why an executor of the node cannot resume a session.
absl::Status SessionIsOver(const std::string& node, const Config& config);

class JobShard {
 public:
  JobShard(std::string id, std::string token, const Config& config,
           std::string incarnation);

  const std::string& id() const { return id_; }
  bool empty() const { return sessions_.empty(); }

  // A new executor says hello. `id` is unique in the coordinator. An error: it
  // is refused, and nothing has changed.
  absl::Status Open(Time now, StreamId stream, SessionId id,
                    const proto::ExecutorHello& hello, Actions* actions);
  // One that comes back, by the message with its hello; an error likewise.
  absl::Status Resume(Time now, StreamId stream,
                      const proto::ExecutorMessage& message, Actions* actions);
  // What comes from a stream that the shard has closed means nothing.
  void Received(Time now, StreamId stream,
                const proto::ExecutorMessage& message, Actions* actions);
  void Ended(Time now, StreamId stream, StreamEnd end, Actions* actions);

  // When OnTime() must be called; none: no need.
  std::optional<Time> Deadline() const;
  void OnTime(Time now, Actions* actions);

  // The coordinator ends: tells all and closes all streams.
  void Stop(Actions* actions);
  // The operator has so decided; the ranks that were told.
  uint32_t Abort(Time now, const std::string& message, Actions* actions);

  // Nodes that have a place no more, since the last call: their session has
  // ended, or Open() has refused it.
  std::vector<std::string> TakeFreed();

  void AddTo(Totals* totals) const;
  // As CoordinatorCore::TakeStragglerTime.
  void TakeStragglerTime(Time now, std::vector<StragglerNode>* all);
  void FillStatus(Time now, proto::JobStatus* status) const;

 private:
  struct ExecutorSession {
    explicit ExecutorSession(SessionId i) : id(i), link(kMaxUnacknowledged) {}
    SessionId id;
    std::string node;
    std::string host;
    Link<proto::CoordinatorMessage> link;
    StreamId stream = 0;           // 0: detached
    std::optional<Time> deadline;  // when detached
  };

  void SetNow(Time now) { now_ = std::max(now_, now); }
  absl::Status CheckOpen(const proto::ExecutorHello& hello) const;
  // The detached session of the node ends: another executor has come.
  void Replace(SessionId id, Actions* actions);
  ExecutorSession* Find(StreamId stream);
  void Welcome(ExecutorSession* session, StreamId stream, Actions* actions);
  void Detach(ExecutorSession* session);
  void Payload(ExecutorSession* session, const proto::ExecutorMessage& message,
               Actions* actions);

  // Ends the session: what it breaks in the job, its stream if there is one.
  void Lose(SessionId session, const std::string& how,
            const absl::Status& status, Actions* actions);
  void BreakOff(ExecutorSession* session, const absl::Status& status,
                Actions* actions);
  // Carries the job's output to its sessions; loses those that are too far
  // behind.
  void Deliver(JobOutput output, Actions* actions);
  void Note(Level level, const ExecutorSession& session,
            absl::string_view event, absl::string_view more,
            Actions* actions) const;

  const std::string id_;
  const std::string token_;
  const Config config_;
  const std::string incarnation_;
  std::unique_ptr<Job> job_;
  std::map<SessionId, ExecutorSession> sessions_;
  std::unordered_map<StreamId, SessionId> streams_;
  std::set<std::pair<Time, SessionId>> detached_;  // by deadline
  std::vector<std::string> freed_;
  Time now_{};  // of the last event
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_JOB_SHARD_H_
