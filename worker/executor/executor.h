// Executor: the process that serves one job on one node.
//
// Purpose: runs ExecutorLogic on real descriptors and threads. One loop thread
// waits for the supervisor's socket, the clients' sockets and processes, the
// board's eventfd and functions that other threads post; ExecutorLogic decides
// what these events mean.
//
// Thread contract: Run() on one thread; other threads only post functions.
#ifndef MAYPOLE_WORKER_EXECUTOR_EXECUTOR_H_
#define MAYPOLE_WORKER_EXECUTOR_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/system/fd.h"
#include "worker/backend/backend.h"
#include "worker/core/executor_core.h"
#include "worker/executor/board/stats_page.h"
#include "worker/executor/executor_logic.h"
#include "worker/executor/executor_reporter.h"
#include "worker/executor/loop_watchdog.h"
#include "worker/executor/mailbox.h"
#include "worker/executor/poller.h"
#include "worker/network/transport.h"

namespace maypole::worker {

struct ExecutorOptions {
  ExecutorCoreOptions core;
  // Factories of the program's transport, backend and GPUs; tests use fakes.
  std::function<std::unique_ptr<Transport>(TransportCallbacks)> make_transport;
  std::function<std::unique_ptr<Backend>(const PrepareBackend&)> make_backend;
  std::function<std::unique_ptr<EpochGpus>(EpochGpus::Callbacks)> make_gpus;
};

class Executor : private ExecutorSystem {
 public:
  Executor(ExecutorOptions options, Fd control, SharedStats stats);
  ~Executor() override;

  // Runs until ExecutorLogic is done. `stop_signals` is a signalfd or invalid.
  absl::Status Run(Fd stop_signals);

 private:
  // ExecutorSystem
  int64_t NowNs() override;
  void Post(std::function<void()> function) override;
  std::vector<std::function<void()>> TakePosted() override;
  HandOver TakeClient(ClientId id, ArrivingClient* client,
                      std::unique_ptr<ClientLink>* link) override;
  void ReportIdle(uint64_t received) override;
  std::unique_ptr<Transport> OpenTransport(TransportCallbacks) override;
  std::unique_ptr<EpochNetwork> MakeNetwork(
      const PrepareBackend& epoch, EpochNetwork::Callbacks callbacks) override;
  std::unique_ptr<EpochGpus> MakeGpus(EpochGpus::Callbacks callbacks) override;
  void EndProcess(const std::string& reason) override;
  Status CreateBoard(const BoardConfig& config, uint32_t version,
                     std::unique_ptr<Board>* board) override;
  std::unique_ptr<BoardWake> MakeBoardWake() override;
  std::unique_ptr<TimelineFile> OpenTimelineFile(Fd file) override;
  std::unique_ptr<TimelineFile> MakeTimelineFile(
      int pid, const std::string& name,
      std::function<void(Status)> failed) override;

  const ExecutorOptions options_;
  LoopWatchdog watchdog_;
  ExecutorReporter reporter_;
  Mailbox mailbox_;
  Poller poller_;
  // Each registration is declared after its descriptor, so that it is destroyed
  // first.
  Fd control_;
  Registration control_watch_;
  Registration mailbox_watch_;
  ExecutorLogic logic_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_EXECUTOR_H_
