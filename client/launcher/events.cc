#include "client/launcher/events.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

namespace maypole::launcher {
namespace {

constexpr int kMaxEvents = 64;  // handled per round and class
constexpr int kMaxWaitMs = 1000;

int MillisecondsUntil(std::optional<Time> deadline) {
  if (!deadline) return kMaxWaitMs;
  // Rounded up: waking before the deadline would only cost another round.
  auto left = std::chrono::ceil<std::chrono::milliseconds>(
      *deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, kMaxWaitMs));
}

}  // namespace

Status EventLoop::Init(std::vector<Outlet*> outlets) {
  outlets_ = std::move(outlets);
  for (Fd& epoll : epoll_) {
    epoll = Fd(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create1");
  }
  return Status();
}

EventLoop::WatchId EventLoop::Watch(Class c, int fd, Handler handler) {
  WatchId id = next_++;
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = id}};
  epoll_ctl(epoll_[c].get(), EPOLL_CTL_ADD, fd, &event);
  watched_[id] = {
      .c = c, .fd = fd, .handler = std::make_shared<Handler>(handler)};
  return id;
}

void EventLoop::Unwatch(WatchId id) {
  auto it = watched_.find(id);
  if (it == watched_.end()) return;
  epoll_ctl(epoll_[it->second.c].get(), EPOLL_CTL_DEL, it->second.fd, nullptr);
  watched_.erase(it);
}

bool EventLoop::OutletsFull() const {
  return std::any_of(outlets_.begin(), outlets_.end(),
                     [](const Outlet* outlet) { return outlet->full(); });
}

void EventLoop::Dispatch(Class c) {
  epoll_event events[kMaxEvents];
  int n = epoll_wait(epoll_[c].get(), events, kMaxEvents, 0);
  for (int i = 0; i < n; ++i) {
    auto it = watched_.find(events[i].data.u64);
    if (it == watched_.end()) continue;  // unwatched in this round
    std::shared_ptr<Handler> handler = it->second.handler;
    (*handler)();
  }
}

void EventLoop::Poll(std::optional<Time> deadline) {
  bool full = OutletsFull();
  std::vector<pollfd> entries = {
      {.fd = epoll_[kControl].get(), .events = POLLIN, .revents = 0},
      {.fd = full ? -1 : epoll_[kOutput].get(), .events = POLLIN, .revents = 0},
  };
  for (Outlet* outlet : outlets_) {
    if (outlet->idle()) continue;
    entries.push_back({.fd = outlet->fd(), .events = POLLOUT, .revents = 0});
  }
  poll(entries.data(), entries.size(), MillisecondsUntil(deadline));
  if (!full) Dispatch(kOutput);
  Dispatch(kControl);
  for (Outlet* outlet : outlets_) outlet->Flush();
}

}  // namespace maypole::launcher
