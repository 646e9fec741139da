#include "worker/backend/tcp_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <stdexcept>

#include "worker/backend/tcp_pair.h"

namespace maypole::worker {
namespace {

constexpr int kMaxEvents = 64;

epoll_event Event(TcpPair* pair, bool wants_read, bool wants_write) {
  epoll_event event{};
  if (wants_read) event.events |= EPOLLIN;
  if (wants_write) event.events |= EPOLLOUT;
  event.data.ptr = pair;
  return event;
}

}  // namespace

TcpLoop::TcpLoop()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  // The loop ends at an event without a pair.
  if (!epoll_.valid() || !stop_.valid() || !Add(stop_.get(), nullptr)) {
    throw std::runtime_error(
        "no file descriptor is free; raise the limit (ulimit -n)");
  }
  thread_ = std::thread([this] { Main(); });
}

bool TcpLoop::Add(int fd, TcpPair* pair) {
  epoll_event event = Event(pair, true, false);
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void TcpLoop::Change(int fd, TcpPair* pair, bool wants_read, bool wants_write) {
  epoll_event event = Event(pair, wants_read, wants_write);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void TcpLoop::Remove(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void TcpLoop::Stop() {
  std::lock_guard lock(mutex_);
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void TcpLoop::Main() {
  epoll_event events[kMaxEvents];
  for (;;) {
    const int n = epoll_wait(epoll_.get(), events, kMaxEvents, -1);
    for (int i = 0; i < n; ++i) {
      auto* const pair = static_cast<TcpPair*>(events[i].data.ptr);
      if (pair == nullptr) return;
      if ((events[i].events & EPOLLOUT) != 0) pair->OnWritable();
      // Also on EPOLLERR and EPOLLHUP: reading returns the error.
      if ((events[i].events & ~EPOLLOUT) != 0) pair->OnReadable();
    }
  }
}

}  // namespace maypole::worker
