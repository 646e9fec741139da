// Network: the backend of one epoch and the thread that drives it.
//
// Purpose: implements EpochNetwork with a network thread, which does everything
// that may wait for other nodes: listening and connecting at the start, then
// exchanging the chunks of all runs.
//
// Thread contract: the owner (the executor's loop) calls all methods. The
// callbacks come from the network thread, those of the runner also from the
// backend's threads. The destructor aborts running calls and joins the thread.
#ifndef MAYPOLE_WORKER_NETWORK_NETWORK_H_
#define MAYPOLE_WORKER_NETWORK_NETWORK_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/backend/backend.h"
#include "worker/executor/executor_system.h"
#include "worker/network/network_runner.h"

namespace maypole::worker {

class Network : public EpochNetwork {
 public:
  Network(std::unique_ptr<Backend> backend, Callbacks callbacks);
  ~Network() override;

  void Prepare(uint32_t node_index, uint32_t nodes) override;
  void Connect(std::vector<std::string> addresses) override;
  void Start(const Board* board) override;
  void Add(RunSpec run) override { runner_->Add(std::move(run)); }
  void Abort() override;

  uint64_t bytes_sent() const override { return backend_->bytes_sent(); }
  uint64_t bytes_received() const override {
    return backend_->bytes_received();
  }

 private:
  void Post(std::function<void()> task);
  void Main();

  std::unique_ptr<Backend> backend_;
  const Callbacks callbacks_;
  std::unique_ptr<NetworkRunner> runner_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_NETWORK_H_
