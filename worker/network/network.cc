#include "worker/network/network.h"

#include <utility>

namespace maypole::worker {

Network::Network(std::unique_ptr<Backend> backend, Callbacks callbacks,
                 std::vector<std::string> node_names,
                 std::function<Registration(int fd)> watch)
    : backend_(std::move(backend)),
      callbacks_(std::move(callbacks)),
      node_names_(std::move(node_names)),
      watch_(std::move(watch)),
      thread_([this] { Main(); }) {}

Network::~Network() {
  Abort();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
  backend_.reset();  // before runner_, which the backend's threads call
}

void Network::Abort() {
  backend_->Abort();
  if (runner_ != nullptr) runner_->Stop();
}

void Network::Post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void Network::Main() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (stop_) return;
    auto tasks = std::exchange(tasks_, {});
    lock.unlock();
    for (auto& task : tasks) task();
    lock.lock();
  }
}

void Network::Prepare(uint32_t node_index, uint32_t nodes) {
  Post([this, node_index, nodes] {
    callbacks_.on_prepared(backend_->Prepare(node_index, nodes));
  });
}

void Network::Connect(std::vector<std::string> addresses) {
  Post([this, addresses = std::move(addresses)] {
    callbacks_.on_connected(backend_->Connect(addresses));
  });
}

void Network::Start(const Board* board) {
  runner_ =
      std::make_unique<NetworkRunner>(board, backend_.get(), callbacks_.runner);
  channels_ = std::make_unique<PeerChannels>(backend_->TakeMessageConnections(),
                                             node_names_);
  channels_watch_ = watch_(channels_->fd());
  Post([this] {
    const absl::Status s = runner_->Run();
    if (!s.ok()) callbacks_.on_failed(s);
  });
}

void Network::SendToPeers(const std::vector<uint32_t>& nodes,
                          const proto::PeerMessage& message) {
  if (channels_ != nullptr) channels_->Send(nodes, message);
}

EpochNetwork::PeerMessages Network::TakePeerMessages() {
  if (channels_ == nullptr) return {};
  PeerMessages messages = channels_->Receive();
  // The core ignores all but the first failure.
  if (!channels_->status().ok()) callbacks_.on_failed(channels_->status());
  return messages;
}

}  // namespace maypole::worker
