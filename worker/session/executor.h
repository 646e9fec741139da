// Executor: the process of one job on one node; the shell around the core.
//
// Purpose: one loop thread feeds the core with what happens (clients handed
// over by the supervisor, their messages and deaths, the board, the
// coordinator, the network thread, time) and does what the core answers.
//
// Life: it ends when the supervisor agrees that it is idle, when the supervisor
// is gone and no client is left, or on SIGTERM.
//
// Its parts: executor.cc (the loop, the supervisor), executor_clients.cc,
// executor_epoch.cc (coordinator, backend, board).
//
// Thread contract: Run() on one thread; other threads only post to mailbox_.
#ifndef MAYPOLE_WORKER_SESSION_EXECUTOR_H_
#define MAYPOLE_WORKER_SESSION_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/fd.h"
#include "common/status.h"
#include "worker/backend/backend.h"
#include "worker/core/core.h"
#include "worker/session/board_keeper.h"
#include "worker/session/connection.h"
#include "worker/session/counter_sampler.h"
#include "worker/session/mailbox.h"
#include "worker/session/network.h"
#include "worker/session/stats_page.h"
#include "worker/session/transport.h"

namespace maypole::worker {

struct ExecutorOptions {
  CoreOptions core;
  // The seams; tests put others in.
  std::function<std::unique_ptr<Transport>(TransportCallbacks)> make_transport;
  std::function<std::unique_ptr<Backend>(const PrepareBackend&)> make_backend;
};

class Executor {
 public:
  Executor(ExecutorOptions options, Fd control, SharedStats stats);
  ~Executor();

  // Until the end of its life. stop_signals: a signalfd, or invalid.
  absl::Status Run(Fd stop_signals);

 private:
  void Watch(int fd, uint64_t tag);
  bool Sleep();  // epoll; false on a broken epoll
  void HandleEvent(uint64_t tag);
  void OnControl();
  void OnHandOver(const char* data, size_t bytes, std::vector<Fd> fds);
  void ReadAllClients();
  void OnClientReady(ClientId id, int max_messages);
  bool OnClientMessage(ClientId id, const std::vector<char>& data);
  Status Dispatch(ClientId id, const std::vector<char>& data);
  void ClientGone(ClientId id, const std::string& how);
  void OnStopSignal();
  void Tick();
  // Looks at the board for what nobody tells, if it is time.
  void LookAround();
  int SleepMs() const;
  void CountNetworkBytes();
  void TakeNews();
  void CountIssued(const RunSpec& run);
  void SampleCounters();
  // Of the board; 0: there is none.
  uint64_t epoch() const {
    return keeper_ == nullptr ? 0 : keeper_->board().config().epoch;
  }

  void DoActions();
  void Do(ReplyClient& a);
  void Do(RefuseClient& a);
  void Do(CloseClient& a);
  void Do(KeepWatching& a);
  void Do(StopWatching& a);
  void Do(OpenLink& a);
  void Do(SendToCoordinator& a);
  void Do(PrepareBackend& a);
  void Do(ConnectBackend& a);
  void Do(CreateBoard& a);
  void Do(AllotSlot& a);
  void Do(WantSlot& a);
  void Do(IssueRun& a);
  void Do(FailSlot& a);
  void Do(MarkLeft& a);
  void Do(MarkGone& a);
  void Do(AbortBoard& a);
  void Do(WantChange& a);
  void Do(DropEpoch& a);
  void Do(ReportIdle& a);
  void Welcome(const CreateBoard& a);
  void WatchWrites(ClientId id, bool wanted);
  void SendToClient(ClientId id, const void* data, size_t bytes,
                    std::vector<int> fds = {});

  const ExecutorOptions options_;
  Core core_;
  SharedStats stats_;
  Mailbox mailbox_;
  Fd epoll_;
  Fd control_;
  Fd stop_signals_;
  uint64_t received_ = 0;  // clients handed over
  int64_t looked_ms_ = 0;
  bool idle_reported_ = false;
  ClientId next_client_ = 1;
  std::map<ClientId, Connection> clients_;
  std::map<ClientId, Fd> kept_pidfds_;  // of clients that have been closed
  std::unique_ptr<Transport> transport_;
  uint64_t link_number_ = 0;        // of transport_; letters of older ones drop
  uint64_t presence_sequence_ = 0;  // unacknowledged Presence, or 0
  Fd board_wake_;
  std::unique_ptr<BoardKeeper> keeper_;
  std::unique_ptr<CounterSampler> sampler_;  // there with keeper_
  // Since when an operation is present on this node, by slot; for the metrics.
  struct PresentSince {
    uint32_t generation = 0;
    int64_t ns = 0;
  };
  std::vector<PresentSince> present_since_;
  std::unique_ptr<Network> network_;
  uint64_t network_number_ = 0;
  uint64_t counted_sent_ = 0;  // of network_, in the metrics already
  uint64_t counted_received_ = 0;
  bool done_ = false;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_SESSION_EXECUTOR_H_
