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
#include "worker/executor/poller.h"
#include "worker/network/network_runner.h"
#include "worker/network/peer_channels.h"

namespace maypole::worker {

class Network : public EpochNetwork {
 public:
  // `node_names`: "node n1 (host b)". `watch` makes the loop report
  // ExecutorEvent::Kind::kPeers when the descriptor can be read.
  Network(std::unique_ptr<Backend> backend, Callbacks callbacks,
          std::vector<std::string> node_names,
          std::function<Registration(int fd)> watch);
  ~Network() override;

  void Prepare(uint32_t node_index, uint32_t nodes) override;
  void Connect(std::vector<std::string> addresses) override;
  void Start(const Board* board) override;
  void Add(RunSpec run) override { runner_->Add(std::move(run)); }
  void Abort() override;
  void SendToPeers(const std::vector<uint32_t>& nodes,
                   const proto::PeerMessage& message) override;
  PeerMessages TakePeerMessages() override;

  uint64_t bytes_sent() const override { return backend_->bytes_sent(); }
  uint64_t bytes_received() const override {
    return backend_->bytes_received();
  }

 private:
  void Post(std::function<void()> task);
  void Main();

  std::unique_ptr<Backend> backend_;
  const Callbacks callbacks_;
  const std::vector<std::string> node_names_;
  const std::function<Registration(int fd)> watch_;
  std::unique_ptr<NetworkRunner> runner_;
  std::unique_ptr<PeerChannels> channels_;  // from Start() on
  Registration channels_watch_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_NETWORK_H_
