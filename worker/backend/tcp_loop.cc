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
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  // The loop ends at an event without a connection.
  if (!epoll_.valid() || !stop_.valid() || !Add(stop_.get(), nullptr)) {
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

TcpLoop::~TcpLoop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void TcpLoop::Main() {
  epoll_event events[kMaxEvents];
  for (;;) {
    const int n = epoll_wait(epoll_.get(), events, kMaxEvents, -1);
    for (int i = 0; i < n; ++i) {
      auto* const connection = static_cast<TcpConnection*>(events[i].data.ptr);
      if (connection == nullptr) return;
      if ((events[i].events & EPOLLOUT) != 0) connection->OnWritable();
      // Also on EPOLLERR and EPOLLHUP: reading returns the error.
      if ((events[i].events & ~EPOLLOUT) != 0) connection->OnReadable();
    }
  }
}

}  // namespace maypole::worker
