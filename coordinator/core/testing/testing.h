// TestBed: a core with fake executors, for tests. It has no threads; the test
// sets the time.
//
//   TestBed bed;
//   Executor& a = bed.Connect("job", "n0");
//   bed.Ready(a, 2, {0});
//   bed.From(a, Present(1, {Allreduce("x", {0}, {3})}));
//   a.inbox                 // payloads, each once and in order
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_COORDINATOR_CORE_TESTING_TESTING_H_
#define MAYPOLE_COORDINATOR_CORE_TESTING_TESTING_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/link.h"
#include "coordinator/core/coordinator_core.h"

namespace maypole::coordinator {

// An EpochEnd and its epoch.
class ReceivedEnd {
 public:
  explicit ReceivedEnd(proto::CoordinatorMessage message)
      : received_(std::move(message)) {}
  uint64_t epoch() const { return received_.epoch(); }
  int code() const { return received_.epoch_end().code(); }
  const std::string& message() const { return received_.epoch_end().message(); }
  const auto& clients() const { return received_.epoch_end().clients(); }

 private:
  proto::CoordinatorMessage received_;
};

struct Executor {
  std::string job;
  std::string node;
  std::string token;
  VersionRange versions;
  uint32_t version = 0;  // as Welcome says
  StreamId stream = 0;   // 0: broken
  std::string session;
  std::string incarnation;
  Link<proto::ExecutorMessage> link{1000};
  std::vector<proto::CoordinatorMessage> inbox;
  // Extracted from the inbox:
  std::vector<proto::Run> runs;
  std::vector<proto::OperationFailed> failures;
  std::vector<proto::SetReply> set_replies;
  std::vector<proto::JoinReply> join_replies;
  std::vector<proto::StandIn> stand_ins;
  std::vector<std::string> notices;
  std::vector<ReceivedEnd> ends;
  std::vector<proto::Relayed> relayed;  // that it has not relayed yet
  std::optional<proto::Refused> refused;
  std::optional<absl::Status> closed;

  const proto::CoordinatorMessage& Last() const { return inbox.back(); }
};

class TestBed {
 public:
  // Its executors know no schedules.
  explicit TestBed(const Config& config = {.frozen_nodes = 0});

  // Opens a stream and says hello; the executor may be refused.
  Executor& Connect(const std::string& job, const std::string& node,
                    const std::string& token = "secret",
                    VersionRange versions = kProtocolVersions);
  Executor& Hello(const proto::ExecutorHello& hello);
  void Ready(Executor& e, uint32_t size, const std::vector<uint32_t>& ranks,
             uint32_t chunk_bytes = 524288);
  // The stall times that the ranks' environment sets.
  int64_t stall_check_ms = -1;
  int64_t stall_shutdown_ms = -1;
  // How long the ranks wait for a start; 0: the environment does not set it.
  int64_t start_timeout_ms = 0;
  uint32_t checksums = 0;  // ChecksumMode that the ranks want
  void Waiting(Executor& e, uint32_t size, const std::vector<uint32_t>& ranks,
               uint32_t local_size);
  // Numbers the payload and delivers it, unless the stream is broken.
  void From(Executor& e, proto::ExecutorMessage payload);
  // Delivers it as it is.
  void Raw(Executor& e, const proto::ExecutorMessage& message);

  // Acknowledges all that it has received.
  void Acknowledge(Executor& e);
  // The first node relays what it was given; `nodes`: of the epoch.
  void PassOn(const std::vector<Executor*>& nodes);

  void Break(Executor& e);   // the network
  void Finish(Executor& e);  // half-close
  // A new stream that resumes the session; resends what was not acknowledged.
  void Resume(Executor& e);
  // Lets time pass, with the core's deadlines on the way.
  void Pass(Time time);
  // The same while the process is stopped (SIGSTOP).
  void PassUnseen(Time time);
  // Like PassUnseen(), but what the test does next comes before the core's
  // timer.
  void SleepUnseen(Time time) { now_ += time; }

  // An operator's calls. Status() returns an empty reply for an unknown job.
  proto::StatusReply Status(const std::string& job = "");
  void Watch(const std::string& job) { core_->Watch(now_, job, carry_); }
  absl::StatusOr<proto::AbortReply> Abort(const std::string& job,
                                          const std::string& reason = "");
  absl::StatusOr<proto::RecordTimelineReply> RecordTimeline(
      const std::string& job, bool stop);
  absl::StatusOr<proto::DrainReply> Drain(const std::string& node,
                                          bool undo = false);

  CoordinatorCore& core() { return *core_; }
  int Count(ErrorKind kind) const;
  int reconnects() const { return reconnects_; }
  const std::vector<OperationIssued>& issued() const { return issued_; }
  const std::vector<StragglerNode>& stragglers() const { return stragglers_; }
  const std::vector<std::string>& log() const { return log_; }
  Time now() const { return now_; }

 private:
  void Carry(const Actions& actions);
  Executor* On(StreamId stream);
  static void Receive(Executor* e, const proto::CoordinatorMessage& message);

  const std::function<void(Actions*)> carry_ = [this](Actions* actions) {
    Carry(*actions);
  };
  Time now_ = std::chrono::seconds(1000);
  std::unique_ptr<CoordinatorCore> core_;
  std::deque<Executor> executors_;
  StreamId last_stream_ = 0;
  std::vector<ErrorKind> errors_;
  std::vector<OperationIssued> issued_;
  std::vector<StragglerNode> stragglers_;
  std::vector<std::string> log_;
  int reconnects_ = 0;
};

// Builders of payloads.
proto::PresentOperation Allreduce(const std::string& name,
                                  const std::vector<uint32_t>& ranks,
                                  const std::vector<int64_t>& shape,
                                  uint32_t generation = 1);
proto::PresentOperation Broadcast(const std::string& name,
                                  const std::vector<uint32_t>& ranks,
                                  const std::vector<int64_t>& shape,
                                  int32_t root);
// `first_dims` by local rank.
proto::PresentOperation Allgather(const std::string& name,
                                  const std::vector<uint32_t>& ranks,
                                  const std::vector<int64_t>& first_dims,
                                  int64_t row);
// `splits` by rank of the process set on the node: what it sends to each rank
// of the set.
proto::PresentOperation Alltoall(
    const std::string& name, const std::vector<uint32_t>& ranks,
    const std::vector<std::vector<int64_t>>& splits, int64_t row);
// The same operation in a process set.
proto::PresentOperation In(uint32_t process_set, proto::PresentOperation op);
proto::ExecutorMessage MakeSet(uint32_t rank, uint32_t number,
                               const std::vector<uint32_t>& ranks);
proto::ExecutorMessage RemoveSet(uint32_t rank, uint32_t number,
                                 uint32_t process_set);
proto::ExecutorMessage Join(uint32_t rank, uint32_t number, bool settled);
proto::ExecutorMessage Present(
    uint64_t epoch, const std::vector<proto::PresentOperation>& operations);
proto::ExecutorMessage Gone(uint64_t epoch, uint32_t rank, bool clean,
                            const std::string& how = "");

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_TESTING_TESTING_H_
