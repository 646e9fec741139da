// Network: the backend of one epoch and the thread that drives it.
//
// Purpose: whatever may wait for other nodes happens on this thread: listening
// and connecting at the start, then the chunks of all runs.
//
// Thread contract: the owner (the executor's loop) calls everything; the
// callbacks come from the network thread, and the runner's from the backend's,
// too. The destructor aborts what is going on and joins.
#ifndef MAYPOLE_WORKER_SESSION_NETWORK_H_
#define MAYPOLE_WORKER_SESSION_NETWORK_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/board.h"
#include "worker/backend/backend.h"
#include "worker/core/run_spec.h"
#include "worker/session/network_runner.h"

namespace maypole::worker {

class Network {
 public:
  struct Callbacks {
    std::function<void(absl::StatusOr<std::vector<std::string>>)> on_prepared;
    std::function<void(absl::Status)> on_connected;
    std::function<void(absl::Status)> on_failed;  // while running
    NetworkRunner::Callbacks runner;
  };

  Network(std::unique_ptr<Backend> backend, Callbacks callbacks);
  ~Network();

  void Prepare(uint32_t node_index, uint32_t nodes);
  void Connect(std::vector<std::string> addresses);
  // The board must outlive this object.
  void Start(const Board* board);
  void Add(RunSpec run) { runner_->Add(std::move(run)); }
  // The epoch is over; what waits for others ends.
  void Abort();

  uint64_t bytes_sent() const { return backend_->bytes_sent(); }
  uint64_t bytes_received() const { return backend_->bytes_received(); }

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

#endif  // MAYPOLE_WORKER_SESSION_NETWORK_H_
