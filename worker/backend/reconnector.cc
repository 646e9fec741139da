#include "worker/backend/reconnector.h"

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "worker/backend/handshake_io.h"

namespace maypole::worker {
namespace {

constexpr std::chrono::milliseconds kBetweenCalls(50);
constexpr int kStepMs = 20;
constexpr uint32_t kMostPauses = 32;

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

std::shared_ptr<SocketSupply> Reconnector::SupplyFor(const ConnectionId& id,
                                                     bool on_own) {
  const auto on_lost = [this, id](int error) {
    std::lock_guard lock(mutex_);
    // One that moves and finds no network has lost them all.
    lost_[id] = {Clock::now(), error == 0 ? 0u : 1u,
                 ConnectionErrorText(error == 0 ? EHOSTUNREACH : error)};
    has_news_ = true;
    changed_.notify_all();
  };
  auto supply = std::make_shared<SocketSupply>(on_lost);
  std::lock_guard lock(mutex_);
  supplies_[id] = supply;
  if (!on_own) NoteNetwork(id, false);
  has_news_ = true;
  changed_.notify_all();
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
    wake = std::min(wake, TryToReturn());
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
  const bool shakes =
      std::any_of(open_.begin(), open_.end(),
                  [&](const auto& o) { return o.second.id == id; });
  if (!calls(id) || shakes) return deadline;
  absl::StatusOr<Authenticated> met = options_.call(
      id, lost.attempts, std::min(Clock::now() + kCallTime, deadline));
  if (met.ok() && Open(id, *std::move(met))) return deadline;
  std::lock_guard lock(mutex_);
  if (const auto it = lost_.find(id); it != lost_.end()) ++it->second.attempts;
  return Clock::now() + kBetweenCalls;
}

Reconnector::Clock::time_point Reconnector::TryToReturn() {
  auto wake = Clock::time_point::max();
  std::unique_lock lock(mutex_);
  const std::map<ConnectionId, Away> all = away_;
  for (const auto& [id, was] : all) {
    const auto now = Clock::now();
    Away& away = away_[id];
    if (!away.away || lost_.count(id) > 0 || has_news_) continue;
    if (now < away.next_trial) {
      wake = std::min(wake, away.next_trial);
      continue;
    }
    lock.unlock();
    const bool reached = options_.reach(id, now + kTrialTime);
    lock.lock();
    if (stop_) break;
    // If not, the node's other connections that are away need not try now.
    const auto next = Clock::now() + away.pauses * options_.return_pause;
    for (auto& [other, a] : away_) {
      if (other == id || (!reached && other.node == id.node)) {
        a.next_trial = std::max(a.next_trial, next);
      }
    }
    wake = std::min(wake, next);
    if (!reached) continue;
    const std::shared_ptr<SocketSupply> supply = supplies_[id];
    lock.unlock();
    supply->RequestMove();
    lock.lock();
  }
  return wake;
}

void Reconnector::NoteNetwork(const ConnectionId& id, bool own) {
  if (!calls(id)) return;
  const auto it = away_.find(id);
  if (own) {
    if (it != away_.end()) it->second.away = false;
    return;
  }
  // Lost once more, or for the first time.
  Away& away = it != away_.end() ? it->second : away_[id];
  if (!away.away) away.pauses = std::min(2 * away.pauses, kMostPauses);
  away.away = true;
  away.next_trial = Clock::now() + away.pauses * options_.return_pause;
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
  const std::string address = handshake::LocalEndpoint(socket.fd()).host;
  const bool own = options_.is_own(id, address);
  std::shared_ptr<SocketSupply> supply;
  {
    std::lock_guard lock(mutex_);
    lost_.erase(id);
    NoteNetwork(id, own);
    const auto it = supplies_.find(id);
    if (it == supplies_.end()) return;
    supply = it->second;
  }
  supply->Give(std::move(socket));
  options_.on_moved(id, address);
}

}  // namespace maypole::worker
