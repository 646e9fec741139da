// ExecutorTimeline: an executor's part in the job's timeline.
//
// Purpose: passes the ranks' requests to the coordinator, and its answers back;
// takes the ranks' records and the executor's own. If a rank of this node has
// started the timeline, this executor writes all nodes' records to that rank's
// file; otherwise it sends its node's records to the coordinator, which passes
// them on (docs/timeline.md). If an operator has started the timeline, the
// executor of the writing node makes the file itself, as the rank's user, in
// the rank's directory.
//
//   off -> on -> (stopped) draining: the ranks' last records are on their way
//       -> drained: a node that does not write has sent its last message
//       -> (the writing node has closed the file) off
//
// Times of other nodes are shifted by the difference of their clocks from this
// node's. Each node knows its own offset from the coordinator's clock
// (ClockOffset).
//
// Thread contract: not synchronized, except recording(); no I/O, threads or
// clock. OnTime() sets the time of the events that follow.
//
// Invariants: at most kMaxWaitingBytes of records wait for the writing node,
// or, as text, for the file that a rank must send. Records that do not fit are
// counted, and the count goes to the file. At most one message of records is on
// its way to the writing node; when the node's last rank leaves, up to
// kLastMessages and an empty one follow.
#ifndef MAYPOLE_WORKER_CORE_TIMELINE_EXECUTOR_TIMELINE_H_
#define MAYPOLE_WORKER_CORE_TIMELINE_EXECUTOR_TIMELINE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/timeline/trace.h"
#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"
#include "worker/core/operations/run_spec.h"
#include "worker/core/timeline/clock_offset.h"

namespace maypole::worker {

class ExecutorTimeline {
 public:
  static constexpr size_t kMaxWaitingBytes = 16 << 20;
  static constexpr size_t kMaxMessageBytes = 256 << 10;
  // A node sends at most this many more messages with records when its last
  // rank leaves.
  static constexpr int kLastMessages = 4;
  // How long a stopped timeline waits for the ranks' last records (kRanksNs),
  // and the writing node for those of other nodes (kNodesNs).
  static constexpr int64_t kRanksNs = 1'000'000'000;
  static constexpr int64_t kNodesNs = 3'000'000'000;
  static constexpr int kSleepMs = 50;

  // What the timeline needs from its owner.
  class Shell {
   public:
    virtual ~Shell() = default;
    virtual void ToCoordinator(proto::ExecutorMessage message) = 0;
    virtual void Reply(ClientId client,
                       const session::TimelineReply& reply) = 0;
    // Sets BoardHeader.timeline.
    virtual void SetTimeline(uint32_t word) = 0;
    // Appends to the file that came with the last OnFile().
    virtual void WriteFile(std::string text) = 0;
    // Closes it when all is written, then calls OnFileClosed().
    virtual void CloseFile() = 0;
    // Makes the file `name` in the working directory of the client's process;
    // WriteFile() then appends to this file. Calls OnFileClosed() if that
    // fails.
    virtual void MakeFile(ClientId client, const std::string& name) = 0;
  };

  // The ranks of this node, and the job's nodes by index.
  struct Epoch {
    uint64_t number = 0;
    uint32_t node = 0;
    std::vector<std::string> nodes;
    std::map<ClientId, int> ranks;
  };

  explicit ExecutorTimeline(Shell* shell) : shell_(shell) {}

  void OnTime(int64_t now_ns);
  // Call OnTime() again after this many milliseconds; -1: at any time.
  int SleepMs() const { return current_ ? kSleepMs : -1; }

  void OnEpochStarted(Epoch epoch);
  void OnEpochOver();

  // --- Clients ---------------------------------------------------------------
  void OnRequest(ClientId client, const session::TimelineRequest& request);
  // True if the client's file is awaited.
  bool AwaitsFile(ClientId client, uint32_t number) const;
  // The file has come, and the shell has it. opened: the client could open it.
  void OnFile(ClientId client, uint32_t number, bool opened);
  void OnRecords(ClientId client, const session::TimelineRecords& records);
  // Call it before the core learns that the client has left.
  void OnClientGone(ClientId client);

  // --- Coordinator, file -----------------------------------------------------
  // Returns false if the message has nothing to do with timelines.
  bool OnCoordinator(const proto::CoordinatorMessage& message);
  void OnFileClosed(const Status& status);
  // Another coordinator has replaced the previous one, and has been sent the
  // output of WriteState(): repeats the unanswered requests and the report that
  // the file is closed. Records that were on their way are lost.
  void OnCoordinatorReplaced();
  void WriteState(proto::NodeState* state) const;

  // --- What the executor does itself -----------------------------------------
  // True if the functions below should be called. Any thread.
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void OnReady(uint32_t slot, uint32_t generation, int64_t now_ns);
  // `names`: of the run's operations.
  void OnIssued(const RunSpec& run, const std::vector<std::string>& names);
  void OnRunDone(uint32_t record, int64_t now_ns);
  void OnPresence(uint32_t operations, int64_t now_ns);

 private:
  enum class File { kAwaited, kOpen, kClosing };

  // The timeline that is on or not closed yet.
  struct Current {
    proto::Timeline info;
    bool writes = false;       // this node writes the file
    int64_t off_since = 0;     // 0: it is on
    std::set<ClientId> ranks;  // whose last records have not come
    // A node that does not write.
    std::string waiting;
    uint64_t dropped = 0;
    bool in_flight = false;
    std::optional<proto::ExecutorMessage> closed;  // as sent
    bool drained = false;
    // The node that writes.
    File file = File::kAwaited;
    std::optional<Trace> trace;
    std::map<uint32_t, uint64_t> not_traced;  // records, by node
    std::set<uint32_t> nodes;  // whose last records have not come
    // Other nodes' records, until this node's clock offset is known: a few of
    // each node.
    std::vector<proto::TimelineRecords> held;
  };
  struct Request {
    ClientId client = 0;
    bool stop = false;
    session::TimelineRequest message;
  };
  // An operation, or a run, that an executor's record is about.
  struct Ready {
    uint32_t generation = 0;
    int64_t ns = 0;
  };
  struct RunningRun {
    Kind kind = Kind::kBarrier;
    std::string name;
    uint32_t operations = 0;
    uint64_t bytes = 0;
    int64_t issued_ns = 0;
  };

  void Ask(const Request& request);
  void KeepEarly(const proto::CoordinatorMessage& message);
  void OnState(const proto::Timeline& timeline);
  void Begin(const proto::Timeline& timeline);
  void MakeFile();
  void Stop(const proto::Timeline& timeline);
  void OnRecords(const proto::TimelineRecords& records);
  void TakeHeld();
  void AddToTrace(std::string_view records, uint32_t node, int64_t shift_ns,
                  uint64_t dropped);
  void AnswerRequests();
  void Take(std::string_view records, uint64_t dropped);
  void Pump();
  void SendRecords(size_t bytes, bool last);
  void Send(proto::ExecutorMessage message);
  void SendRest();
  void Write();
  void Finish(Code code, const std::string& text);
  void Add(const TimelineRecord& record);

  Shell* const shell_;
  int64_t now_ = 0;
  Epoch epoch_;  // number 0: none
  // For an epoch that starts: the message that began the last timeline, and its
  // newest state.
  std::vector<proto::CoordinatorMessage> early_;
  proto::Timeline state_;  // the last one received
  std::optional<Current> current_;
  ClockOffset clock_;
  std::vector<Request> requests_;  // unanswered
  uint32_t granted_ = 0;           // the last timeline whose writer was told
  std::atomic<bool> recording_{false};
  std::map<uint32_t, Ready> ready_;      // by slot
  std::map<uint32_t, RunningRun> runs_;  // by record
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_TIMELINE_EXECUTOR_TIMELINE_H_
