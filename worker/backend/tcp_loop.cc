#include "worker/backend/tcp_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <stdexcept>

#include "worker/backend/tcp_connection.h"

namespace maypole::worker {
namespace {

constexpr int kMaxEvents = 64;

epoll_event Event(TcpConnection* connection, bool wants_read,
                  bool wants_write) {
  epoll_event event{};
  if (wants_read) event.events |= EPOLLIN;
  if (wants_write) event.events |= EPOLLOUT;
  event.data.ptr = connection;
  return event;
}

}  // namespace

TcpLoop::TcpLoop()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  // Its event has no connection.
  if (!epoll_.valid() || !wake_.valid() || !Add(wake_.get(), nullptr)) {
    throw std::runtime_error(
        "no file descriptor is free; raise the limit (ulimit -n)");
  }
  thread_ = std::thread([this] { Main(); });
}

bool TcpLoop::Add(int fd, TcpConnection* connection) {
  epoll_event event = Event(connection, true, false);
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void TcpLoop::Change(int fd, TcpConnection* connection, bool wants_read,
                     bool wants_write) {
  epoll_event event = Event(connection, wants_read, wants_write);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void TcpLoop::Remove(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void TcpLoop::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
}

void TcpLoop::Again(TcpConnection* connection) {
  std::lock_guard lock(mutex_);
  again_.push_back(connection);
  if (again_.size() == 1) Wake();
}

TcpLoop::~TcpLoop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    Wake();
  }
  thread_.join();
}

void TcpLoop::Main() {
  epoll_event events[kMaxEvents];
  std::vector<TcpConnection*> again;
  for (;;) {
    const int n = epoll_wait(epoll_.get(), events, kMaxEvents, -1);
    bool woken = false;
    for (int i = 0; i < n; ++i) {
      auto* const connection = static_cast<TcpConnection*>(events[i].data.ptr);
      if (connection == nullptr) {
        woken = true;
        continue;
      }
      if ((events[i].events & EPOLLOUT) != 0) connection->OnWritable();
      // Also on EPOLLERR and EPOLLHUP: reading returns the error.
      if ((events[i].events & ~EPOLLOUT) != 0) connection->OnReadable();
    }
    if (!woken) continue;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t r =
          read(wake_.get(), &count, sizeof(count));
      again.swap(again_);
    }
    for (TcpConnection* const connection : again) connection->OnAgain();
    again.clear();
  }
}

}  // namespace maypole::worker
