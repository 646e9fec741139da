#include "worker/backend/reconnector.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/backend/handshake_io.h"

namespace maypole::worker {
namespace {

constexpr std::chrono::milliseconds kBetweenCalls(50);
constexpr int kStepMs = 20;

}  // namespace

Reconnector::Reconnector(ReconnectorOptions options)
    : options_(std::move(options)) {
  thread_ = std::thread([this] { Main(); });
}

Reconnector::~Reconnector() { Stop(); }

void Reconnector::Stop() {
  decltype(supplies_) supplies;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    supplies.swap(supplies_);
    changed_.notify_all();
  }
  for (auto& [id, supply] : supplies) supply->Close();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<SocketSupply> Reconnector::SupplyFor(const ConnectionId& id) {
  const auto on_lost = [this, id](int error) {
    std::lock_guard lock(mutex_);
    lost_[id] = {Clock::now(), 0, ConnectionErrorText(error)};
    has_news_ = true;
    changed_.notify_all();
  };
  auto supply = std::make_shared<SocketSupply>(on_lost);
  std::lock_guard lock(mutex_);
  supplies_[id] = supply;
  return supply;
}

void Reconnector::OnCall(const ConnectionId& id, Authenticated met) {
  std::lock_guard lock(mutex_);
  calls_.emplace_back(id, std::move(met));
  has_news_ = true;
  changed_.notify_all();
}

void Reconnector::Main() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    has_news_ = false;
    std::vector<std::pair<ConnectionId, Authenticated>> calls;
    std::swap(calls, calls_);
    const std::map<ConnectionId, Lost> lost = lost_;
    lock.unlock();
    for (auto& [id, met] : calls) Open(id, std::move(met));
    auto wake = Clock::time_point::max();
    for (const auto& [id, l] : lost) wake = std::min(wake, Serve(id, l));
    const bool shakes = !open_.empty();
    StepHandshakes();
    lock.lock();
    const auto due = [this] { return stop_ || has_news_; };
    if (shakes) continue;  // one that has failed is due at once
    if (wake == Clock::time_point::max()) {
      changed_.wait(lock, due);
    } else {
      changed_.wait_until(lock, wake, due);
    }
  }
}

Reconnector::Clock::time_point Reconnector::Serve(const ConnectionId& id,
                                                  const Lost& lost) {
  const auto deadline = lost.since + options_.patience;
  if (Clock::now() >= deadline) {
    {
      std::lock_guard lock(mutex_);
      if (lost_.erase(id) == 0) return Clock::time_point::max();
    }
    options_.on_failed(id, lost.why);
    return Clock::time_point::max();
  }
  const bool calls = id.node < options_.self;
  const bool shakes =
      std::any_of(open_.begin(), open_.end(),
                  [&](const auto& o) { return o.second.id == id; });
  if (!calls || shakes) return deadline;
  absl::StatusOr<Authenticated> met = options_.call(
      id, lost.attempts, std::min(Clock::now() + kCallTime, deadline));
  if (met.ok() && Open(id, *std::move(met))) return deadline;
  std::lock_guard lock(mutex_);
  if (const auto it = lost_.find(id); it != lost_.end()) ++it->second.attempts;
  return Clock::now() + kBetweenCalls;
}

bool Reconnector::Open(const ConnectionId& id, Authenticated met) {
  absl::StatusOr<PeerSocket> socket = options_.open(id, std::move(met));
  if (!socket.ok()) return false;
  if (!socket->encrypted()) {
    Give(id, *std::move(socket));
    return true;
  }
  // The latest call counts.
  std::erase_if(open_, [&](const auto& entry) {
    if (entry.second.id != id) return false;
    handshakes_.Remove(entry.first);
    return true;
  });
  Handshake& handshake = open_[++opened_];
  handshake = {id, *std::move(socket), Clock::now()};
  handshakes_.Add(opened_, &handshake.socket);
  return true;
}

void Reconnector::StepHandshakes() {
  if (open_.empty()) return;
  for (const auto& [tag, status] : handshakes_.Step(kStepMs)) {
    auto entry = open_.extract(tag);
    if (!status.ok()) continue;  // as if the call had failed
    Give(entry.mapped().id, std::move(entry.mapped().socket));
  }
  std::erase_if(open_, [&](const auto& entry) {
    if (Clock::now() < entry.second.since + kHandshakeTimeout) return false;
    handshakes_.Remove(entry.first);
    return true;
  });
}

void Reconnector::Give(const ConnectionId& id, PeerSocket socket) {
  std::shared_ptr<SocketSupply> supply;
  {
    std::lock_guard lock(mutex_);
    lost_.erase(id);
    const auto it = supplies_.find(id);
    if (it == supplies_.end()) return;
    supply = it->second;
  }
  const std::string address = handshake::LocalEndpoint(socket.fd()).host;
  supply->Give(std::move(socket));
  options_.on_moved(id, address);
}

}  // namespace maypole::worker
