// JobShard: one job and the sessions of its executors; a pure state machine.
//
// Purpose: does everything that the coordinator does for one job, without
// touching other jobs. Each shard has its own lock (coordinator_core.h).
//
//   JobShard shard("job", "token", config, "5f2c...");
//   absl::Status status = shard.Open(now, stream, id, hello, &actions);
//   shard.Received(now, stream, message, &actions);
//   if (shard.Deadline() <= now) shard.OnTime(now, &actions);
//   shard.Ended(now, stream, StreamEnd::kBroken, &actions);
//   for (const std::string& node : shard.TakeFreed()) ...
//
//   state of a session   reached by               consequence
//   connected            hello                    messages flow
//   detached             its stream broke         messages are kept; after
//                                                 resume_timeout it is lost
//   reporting            the hello of an executor  until the job knows what a
//                        that had a session with  coordinator before this one
//                        another coordinator      knew, other messages of all
//                                                 sessions are held
//   lost                 timeout, a protocol      the job ends what needs the
//                        violation, or missing    session; a resume is refused
//                        acknowledgements
//   (forgotten)          finished its stream      none
//                        without ranks in the
//                        epoch or start
//
// Time never goes back for a shard: an event with an earlier time than the
// previous event gets the previous event's time.
//
// Thread contract: not synchronized; pure.
//
// Invariants: the shard forgets a stream when it asks for Close.
#ifndef MAYPOLE_COORDINATOR_CORE_JOB_SHARD_H_
#define MAYPOLE_COORDINATOR_CORE_JOB_SHARD_H_

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/actions.h"
#include "coordinator/core/job.h"
#include "coordinator/core/relays.h"
#include "coordinator/core/session_table.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

enum class StreamEnd {
  kFinished,  // the executor has half-closed it and will not resume
  kBroken,    // any other end: the executor may resume
};

// Totals over all jobs, for gauges.
struct Totals {
  size_t jobs = 0;
  size_t nodes = 0;
  size_t ranks = 0;  // of running epochs, without those that have left
  size_t pending_operations = 0;
  size_t late_ranks = 0;
  size_t late_operations = 0;
  size_t frozen_jobs = 0;  // that execute their steps without the coordinator
};

// Appends the actions that refuse a stream: Refused, Close, and a log line with
// the fields `who` (" job=j node=n0").
void Refuse(StreamId stream, const absl::Status& status, absl::string_view who,
            Actions* actions);

// The version of a session with this executor, or why there is none.
absl::StatusOr<uint32_t> SessionVersion(const proto::ExecutorHello& hello,
                                        const Config& config);

// The error for an executor of the node whose session cannot be resumed.
absl::Status SessionIsOver(const std::string& node, const Config& config);

class JobShard {
 public:
  JobShard(std::string id, std::string token, const Config& config,
           std::string incarnation);

  const std::string& id() const { return id_; }
  bool empty() const { return sessions_.empty(); }

  // Opens a session for a new executor. `id` is unique in the coordinator. On
  // an error the caller refuses the executor, and nothing has changed.
  absl::Status Open(Time now, StreamId stream, SessionId id,
                    const proto::ExecutorHello& hello, Actions* actions);
  // Resumes a session on a new stream; `message` contains the hello. Errors as
  // in Open().
  absl::Status Resume(Time now, StreamId stream,
                      const proto::ExecutorMessage& message, Actions* actions);
  // Messages of a stream that the shard has closed are ignored.
  void Received(Time now, StreamId stream,
                const proto::ExecutorMessage& message, Actions* actions);
  void Ended(Time now, StreamId stream, StreamEnd end, Actions* actions);

  // When OnTime() must be called; nullopt if there is no need.
  std::optional<Time> Deadline() const;
  void OnTime(Time now, Actions* actions);

  // The coordinator ends: tells all executors and closes all streams.
  void Stop(Actions* actions);
  // An operator changes the job: calls `change`, and delivers what the job then
  // sends.
  void Change(Time now, absl::FunctionRef<void(Job*, Time)> change,
              Actions* actions);

  // Nodes whose place (see Directory) must be released because, since the last
  // call, their session has ended or Open() has refused it.
  std::vector<std::string> TakeFreed();

  void AddTo(Totals* totals) const;
  // As CoordinatorCore::TakeStragglerTime.
  void TakeStragglerTime(Time now, std::vector<StragglerNode>* all);
  void FillStatus(Time now, proto::JobStatus* status) const;

 private:
  // Notes the time of an event. If this process did not run for part of the
  // time in which executors must come back (SIGSTOP, a suspended machine), that
  // time starts again.
  void SetNow(Time now);
  // Whether executors have a deadline for coming back.
  bool Waits() const { return sessions_.any_detached() || job_->recovering(); }
  absl::Status CheckOpen(const proto::ExecutorHello& hello) const;
  // Ends the node's detached session, because a new executor of the node has
  // connected.
  void Replace(SessionId id, Actions* actions);
  // Closes the session's stream, if it has one: another stream takes over.
  void CloseOldStream(const ExecutorSession& session, Actions* actions) const;
  void Welcome(ExecutorSession* session, StreamId stream, Actions* actions);
  // If the executor opens its session with this coordinator once more, because
  // it did not get the Welcome, sends the Welcome again and returns true.
  bool OpensAgain(StreamId stream, const proto::ExecutorHello& hello,
                  Actions* actions);
  // Handles the messages that were held while the job was recovering.
  void HandleHeld(Actions* actions);
  void Payload(ExecutorSession* session, const proto::ExecutorMessage& message,
               Actions* actions);

  // Adds a part of the node's state; handles the state if it is the last one.
  absl::Status TakeStatePart(ExecutorSession* session,
                             const proto::NodeStatePart& part,
                             Actions* actions);

  // Ends the session, everything in the job that needs it, and its stream if
  // there is one.
  void Lose(SessionId session, const std::string& how,
            const absl::Status& status, Actions* actions);
  void BreakOff(ExecutorSession* session, const absl::Status& status,
                Actions* actions);
  // Delivers the job's output to its sessions; ends sessions with too many
  // unacknowledged messages.
  void Deliver(Actions* actions);

  // --- Relayed messages ------------------------------------------------------
  absl::Status BeginRelays(const ExecutorSession& session, uint64_t number,
                           Actions* actions);
  // For a while, sends to each node directly again, beginning with what it has
  // not acknowledged. `why`: for the log.
  void PauseRelays(absl::string_view why, Actions* actions);
  // The same for the rest of the epoch.
  void EndRelays(absl::string_view why, Actions* actions);
  void CheckRelays(Actions* actions);

  void Note(Level level, const ExecutorSession& session,
            absl::string_view event, absl::string_view more,
            Actions* actions) const;

  const std::string id_;
  const std::string token_;
  const Config config_;
  const std::string incarnation_;
  JobOutput output_;  // of job_, until Deliver()
  std::unique_ptr<Job> job_;
  SessionTable sessions_;
  std::vector<std::string> freed_;
  std::deque<std::pair<SessionId, proto::ExecutorMessage>> held_;
  size_t held_bytes_ = 0;       // of memory
  uint64_t last_decision_ = 0;  // that was delivered
  std::optional<Relays> relays_;
  Time now_{};  // of the last event
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_JOB_SHARD_H_
