// ExecutorSystem: the interfaces through which ExecutorLogic uses sockets,
// threads and the clock.
//
// Purpose: ExecutorLogic decides what an executor does, and uses the system
// only through this file. The program implements it with descriptors and
// threads (executor.h), tests/simulation with events in an order that a seed
// determines. So the simulation covers the whole executor except the program's
// implementations.
//
// A ClientLink or BoardWake is watched as long as it exists: the loop that has
// made it reports its events. There are no calls that watch or close one, so
// none can be closed while it is watched.
//
// Thread contract: the executor's loop, except ExecutorSystem::Post() and
// functions that are marked otherwise.
#ifndef MAYPOLE_WORKER_EXECUTOR_EXECUTOR_SYSTEM_H_
#define MAYPOLE_WORKER_EXECUTOR_EXECUTOR_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/board/board.h"
#include "common/gpu/runner/epoch_gpus.h"
#include "common/status.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"
#include "worker/core/actions.h"
#include "worker/core/liveness/board_snapshot.h"
#include "worker/core/operations/ready_slot.h"
#include "worker/core/operations/run_spec.h"
#include "worker/network/network_runner.h"
#include "worker/network/transport.h"

namespace maypole::worker {

// What has happened while the loop slept. Events are level-triggered: an event
// that is not handled is reported again.
struct ExecutorEvent {
  enum class Kind {
    kHandOver,      // the supervisor hands over a client, or is gone
    kPosted,        // see ExecutorSystem::Post()
    kBoardWake,     // a rank has changed the board
    kClient,        // a client's socket can be read, or written after Send()
    kPeers,         // see EpochNetwork::TakePeerMessages()
    kProcessEnded,  // the process of a ClientLink or ProcessWatch has ended
  };
  Kind kind;
  ClientId client = 0;  // kClient, kProcessEnded
};

// The eventfd of one epoch's board, which the ranks get and write to.
class BoardWake {
 public:
  virtual ~BoardWake() = default;
  // Called for each kBoardWake event.
  virtual void Drain() = 0;
};

// Watches the process of a client whose connection was closed.
class ProcessWatch {
 public:
  virtual ~ProcessWatch() = default;
};

// The connection to one client, and its process.
class ClientLink {
 public:
  virtual ~ClientLink() = default;
  // Returns the next message, which is empty if the client has closed the
  // connection, and the descriptor that came with it, if any;
  // kDeadlineExceeded if there is no message now.
  virtual Status Receive(std::vector<char>* message, Fd* descriptor) = 0;
  // Sends the message, or keeps it until the socket accepts it. Returns an
  // error if this client will never get it. A client that has gone is not an
  // error here; Receive() reports it.
  virtual Status Send(const void* data, size_t bytes) = 0;
  virtual Status SendWelcome(const session::Welcome& welcome,
                             const Board& board, const BoardWake& wake) = 0;
  // `state` is a descriptor that goes with the reply, or null.
  virtual Status SendState(const session::StateReply& reply,
                           const Fd* state) = 0;
  // Sends kept messages; errors as for Send().
  virtual Status Flush() = 0;
  // Returns an object that watches the process after the connection is closed,
  // or null if the process cannot be watched.
  virtual std::unique_ptr<ProcessWatch> KeepProcess() = 0;
};

// The network of one epoch: the backend and the thread that drives it.
class EpochNetwork {
 public:
  // Called from any thread.
  struct Callbacks {
    std::function<void(absl::StatusOr<std::vector<std::string>>)> on_prepared;
    std::function<void(absl::Status)> on_connected;
    std::function<void(absl::Status)> on_failed;  // while running
    NetworkRunner::Callbacks runner;
  };

  // Aborts running calls; no callback follows.
  virtual ~EpochNetwork() = default;
  virtual void Prepare(uint32_t node_index, uint32_t nodes) = 0;
  virtual void Connect(std::vector<std::string> addresses) = 0;
  // The board must outlive this object.
  virtual void Start(const Board* board) = 0;
  virtual void Add(RunSpec run) = 0;
  // The epoch is over: ends all waits for other nodes.
  virtual void Abort() = 0;
  // Messages to and from the executors of other nodes; those of each executor
  // arrive in the order in which it sent them. Call these after Start(); they
  // do not wait.
  virtual void SendToPeers(const std::vector<uint32_t>& nodes,
                           const proto::PeerMessage& message) = 0;
  using PeerMessages = std::vector<std::pair<uint32_t, proto::PeerMessage>>;
  virtual PeerMessages TakePeerMessages() = 0;
  virtual uint64_t bytes_sent() const = 0;
  virtual uint64_t bytes_received() const = 0;
};

// The file of the job's timeline.
class TimelineFile {
 public:
  // Writes the rest to the file, unless that takes long.
  virtual ~TimelineFile() = default;
  // Appends to the file. Does not wait.
  virtual void Write(std::string text) = 0;
  // Calls done(), from any thread, when everything is written or writing has
  // failed; never after the destructor has returned.
  virtual void Close(std::function<void(Status)> done) = 0;
};

// A client, as the supervisor hands it over.
struct ArrivingClient {
  session::Hello hello;
  int pid = 0;  // in our PID namespace, or 0
};

class ExecutorSystem {
 public:
  enum class HandOver {
    kClient,
    kNone,
    kLost,  // a client was handed over, but its connection did not arrive
    kSupervisorGone
  };

  virtual ~ExecutorSystem() = default;

  // Never goes back.
  virtual int64_t NowNs() = 0;

  // From any thread. The loop calls the functions in the order of Post().
  virtual void Post(std::function<void()> function) = 0;
  // Returns the functions that were posted since the last call.
  virtual std::vector<std::function<void()>> TakePosted() = 0;

  // Fills in *client for kClient and kLost, and *link for kClient. The link's
  // events carry `id`.
  virtual HandOver TakeClient(ClientId id, ArrivingClient* client,
                              std::unique_ptr<ClientLink>* link) = 0;
  // Tells the supervisor that the executor has had no clients for a while, and
  // how many were handed over so far.
  virtual void ReportIdle(uint64_t received) = 0;

  virtual std::unique_ptr<Transport> OpenTransport(
      TransportCallbacks callbacks) = 0;
  virtual std::unique_ptr<EpochNetwork> MakeNetwork(
      const PrepareBackend& epoch, EpochNetwork::Callbacks callbacks) = 0;
  virtual std::unique_ptr<EpochGpus> MakeGpus(
      EpochGpus::Callbacks callbacks) = 0;
  virtual Status CreateBoard(const BoardConfig& config, uint32_t version,
                             std::unique_ptr<Board>* board) = 0;
  virtual std::unique_ptr<BoardWake> MakeBoardWake() = 0;
  // Null: there are no files here.
  virtual std::unique_ptr<TimelineFile> OpenTimelineFile(Fd /*file*/) {
    return nullptr;
  }
  // Makes a new file in the working directory of the process. Calls failed(),
  // from any thread, if it cannot be made; never after the file's destructor
  // has returned.
  virtual std::unique_ptr<TimelineFile> MakeTimelineFile(
      int /*pid*/, const std::string& /*name*/,
      std::function<void(Status)> /*failed*/) {
    return nullptr;
  }
  // From any thread. Ends the process at once, because one of its threads is
  // stuck forever.
  virtual void EndProcess(const std::string& reason) = 0;
};

// Observes what an executor does, for its log, its metrics and traces. All
// calls come from the loop, except OnRunDone().
class ExecutorObserver {
 public:
  virtual ~ExecutorObserver() = default;
  // The action is about to be executed.
  virtual void OnAction(const Action&) {}
  virtual void OnClient(const session::Hello&, int /*pid*/) {}
  // `rank` is the one in the client's Hello.
  virtual void OnClientRefused(int /*rank*/, const std::string& /*reason*/) {}
  virtual void OnClientGone(int /*rank*/, const std::string& /*how*/) {}
  virtual void OnSupervisorGone(bool /*agreed*/) {}

  virtual void OnCoordinatorAway(const absl::Status&) {}
  virtual void OnCoordinatorLost(const absl::Status&) {}
  virtual void OnCoordinatorBack() {}
  virtual void OnNetworkFailed(const absl::Status&) {}
  virtual void OnPresenceSent(uint64_t /*operations*/) {}

  // The board lives until OnEpochOver() has returned.
  virtual void OnEpochStarted(const BoardConfig&, const Board&) {}
  virtual void OnEpochAborted(const AbortBoard&) {}
  virtual void OnEpochOver(const EpochNetwork* /*or null*/) {}
  virtual void OnBoardBytes(size_t /*bytes*/) {}
  virtual void OnRankLeft(const MarkLeft&) {}
  // The executor's kept states have changed, or `refusal` says why they have
  // not. `rank` is the one in the client's Hello.
  virtual void OnStateCall(int /*rank*/, const session::StateRequest&,
                           uint64_t /*bytes of all states*/,
                           const Status& /*refusal*/) {}
  virtual void OnChangeWanted(uint32_t /*ranks*/) {}
  // The board has been scanned for stragglers, frozen and blocked ranks.
  virtual void OnScan(const BoardSnapshot&) {}
  // Adds the counters of the running epoch's ranks.
  virtual void FillStats(proto::NodeStats*) {}
  virtual void OnTick(const EpochNetwork* /*or null*/) {}

  virtual void OnReady(const ReadySlot&) {}
  virtual void OnIssued(const RunSpec&) {}
  // Inputs of small operations have been sent to `nodes` other nodes.
  virtual void OnInputsSent(size_t /*bytes*/, size_t /*nodes*/) {}
  // Small operations have completed with the inputs that other nodes sent.
  virtual void OnSmallFinished(const FinishSmall&) {}
  virtual void OnOperationFailed(const FailSlot&, const std::string& /*name*/) {
  }
  // From any thread: all chunks of the run have been exchanged.
  virtual void OnRunDone(const RunSpec&) {}
  virtual void OnGpuRunEnded(const GpuRun&) {}
  virtual void OnTimelineClosed(const Status&) {}
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_EXECUTOR_SYSTEM_H_
