// ExecutorSystem: the seam below an executor's logic: sockets, threads, the
// clock.
//
// Purpose: ExecutorLogic decides what an executor does; it reaches the world
// through the interfaces of this file only. The program implements them with
// descriptors and threads (executor.h), tests/simulation with events that a
// seed orders. So what a seed can find is all of the executor but this file's
// implementations.
//
// Lifetimes are the registrations: a ClientLink or a BoardWake is watched as
// long as it exists, and reports events by the loop that made it. There is no
// call to watch or to close, and nothing can be closed that is still watched.
//
// Thread contract: everything is called from the executor's loop, but
// ExecutorSystem::Post() and what is marked otherwise.
#ifndef MAYPOLE_WORKER_EXECUTOR_EXECUTOR_SYSTEM_H_
#define MAYPOLE_WORKER_EXECUTOR_EXECUTOR_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/board/board.h"
#include "common/status.h"
#include "common/wire/session_messages.h"
#include "worker/core/actions.h"
#include "worker/core/operations/ready_slot.h"
#include "worker/core/operations/run_spec.h"
#include "worker/network/network_runner.h"
#include "worker/network/transport.h"

namespace maypole::worker {

// What has happened while the loop slept. Levels: what is not dealt with is
// reported again.
struct ExecutorEvent {
  enum class Kind {
    kHandOver,      // the supervisor has a client for us, or is gone
    kPosted,        // see ExecutorSystem::Post()
    kBoardWake,     // a rank wants the board looked at
    kClient,        // its socket can be read, or takes again what was kept
    kProcessEnded,  // of a ClientLink, or of the ProcessWatch taken from it
  };
  Kind kind;
  ClientId client = 0;  // kClient, kProcessEnded
};

// The eventfd of one epoch's board, which goes to its ranks.
class BoardWake {
 public:
  virtual ~BoardWake() = default;
  // Takes what ranks have written to it.
  virtual void Drain() = 0;
};

// The process of a client whose connection was closed.
class ProcessWatch {
 public:
  virtual ~ProcessWatch() = default;
};

// The connection to one client, and its process.
class ClientLink {
 public:
  virtual ~ClientLink() = default;
  // The next message; empty: the client has closed the connection.
  // kDeadlineExceeded: there is none now.
  virtual Status Receive(std::vector<char>* message) = 0;
  // Sends it, or keeps it until the socket takes it. An error: this client will
  // never get it. A client that has gone is none: it shows in Receive().
  virtual Status Send(const void* data, size_t bytes) = 0;
  virtual Status SendWelcome(const session::Welcome& welcome,
                             const Board& board, const BoardWake& wake) = 0;
  // Sends what was kept; errors like Send().
  virtual Status Flush() = 0;
  // Goes on watching the process when the connection is closed; null: nobody
  // can say when it ends.
  virtual std::unique_ptr<ProcessWatch> KeepProcess() = 0;
};

// The network stage of one epoch: the backend and the thread that drives it.
class EpochNetwork {
 public:
  // From any thread.
  struct Callbacks {
    std::function<void(absl::StatusOr<std::vector<std::string>>)> on_prepared;
    std::function<void(absl::Status)> on_connected;
    std::function<void(absl::Status)> on_failed;  // while running
    NetworkRunner::Callbacks runner;
  };

  // Aborts what is going on; no callback comes after it.
  virtual ~EpochNetwork() = default;
  virtual void Prepare(uint32_t node_index, uint32_t nodes) = 0;
  virtual void Connect(std::vector<std::string> addresses) = 0;
  // The board must outlive this object.
  virtual void Start(const Board* board) = 0;
  virtual void Add(RunSpec run) = 0;
  // The epoch is over; what waits for others ends.
  virtual void Abort() = 0;
  virtual uint64_t bytes_sent() const = 0;
  virtual uint64_t bytes_received() const = 0;
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
    kLost,  // of a client that was handed over the connection did not come
    kSupervisorGone
  };

  virtual ~ExecutorSystem() = default;

  // Never goes back.
  virtual int64_t NowNs() = 0;

  // From any thread: the loop calls it, in the order of Post().
  virtual void Post(std::function<void()> function) = 0;
  // What was posted since the last call.
  virtual std::vector<std::function<void()>> TakePosted() = 0;

  // kClient: *client and *link are filled in; the link's events carry `id`.
  // kLost: *client is.
  virtual HandOver TakeClient(ClientId id, ArrivingClient* client,
                              std::unique_ptr<ClientLink>* link) = 0;
  // No clients for a while, and so many were handed over.
  virtual void ReportIdle(uint64_t received) = 0;

  virtual std::unique_ptr<Transport> OpenTransport(
      TransportCallbacks callbacks) = 0;
  virtual std::unique_ptr<EpochNetwork> MakeNetwork(
      const PrepareBackend& epoch, EpochNetwork::Callbacks callbacks) = 0;
  virtual Status CreateBoard(const BoardConfig& config,
                             std::unique_ptr<Board>* board) = 0;
  virtual std::unique_ptr<BoardWake> MakeBoardWake() = 0;
};

// Hears what an executor does, for its log, its metrics and traces. Called from
// the loop, but OnRunDone().
class ExecutorObserver {
 public:
  virtual ~ExecutorObserver() = default;
  // Is about to be done.
  virtual void OnAction(const Action&) {}
  virtual void OnClient(const session::Hello&, int /*pid*/) {}
  // rank: what it has said it is.
  virtual void OnClientRefused(int /*rank*/, const std::string& /*reason*/) {}
  virtual void OnClientGone(int /*rank*/, const std::string& /*how*/) {}
  virtual void OnSupervisorGone(bool /*agreed*/) {}

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
  virtual void OnChangeWanted(uint32_t /*ranks*/) {}
  // The board is about to be looked at for what nobody tells.
  virtual void OnScan() {}
  virtual void OnTick(const EpochNetwork* /*or null*/) {}

  virtual void OnReady(const ReadySlot&) {}
  virtual void OnIssued(const RunSpec&) {}
  virtual void OnOperationFailed(const FailSlot&, const std::string& /*name*/) {
  }
  // From any thread: all chunks of the run are exchanged.
  virtual void OnRunDone(const RunSpec&) {}
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_EXECUTOR_SYSTEM_H_
