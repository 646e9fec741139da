#include "worker/backend/tcp_transport.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <utility>

#include "worker/backend/tcp_pair.h"

namespace maypole::worker {
namespace {

constexpr uint64_t kStop = UINT64_MAX;
constexpr int kMaxEvents = 64;

}  // namespace

TcpTransport::TcpTransport(int self, int nodes)
    : Context(self, nodes),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      by_node_(static_cast<size_t>(nodes), nullptr) {
  for (int i = 0; i < nodes; ++i) {
    if (i != self) createPair(i);
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kStop;
  if (!epoll_.valid() || !stop_.valid() ||
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stop_.get(), &event) != 0) {
    throw std::runtime_error(
        "no file descriptor is free; raise the limit (ulimit -n)");
  }
  thread_ = std::thread([this] { Main(); });
}

TcpTransport::~TcpTransport() {
  Close();
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

std::unique_ptr<gloo::transport::Pair>& TcpTransport::createPair(int node) {
  const auto i = static_cast<size_t>(node);
  auto pair = std::make_unique<TcpPair>(static_cast<uint32_t>(node));
  by_node_[i] = pair.get();
  pairs_[i] = std::move(pair);
  return pairs_[i];
}

std::unique_ptr<gloo::transport::UnboundBuffer>
TcpTransport::createUnboundBuffer(void* data, size_t bytes) {
  return std::make_unique<TcpBuffer>(by_node_, data, bytes);
}

void TcpTransport::Adopt(int node, Fd connection) {
  by_node_[static_cast<size_t>(node)]->Adopt(std::move(connection),
                                             epoll_.get());
}

void TcpTransport::Close() {
  for (TcpPair* pair : by_node_) {
    if (pair != nullptr) pair->close();
  }
}

void TcpTransport::Main() {
  epoll_event events[kMaxEvents];
  for (;;) {
    const int n = epoll_wait(epoll_.get(), events, kMaxEvents, -1);
    if (n < 0 && errno != EINTR) return Close();
    for (int i = 0; i < n; ++i) {
      if (events[i].data.u64 == kStop) return;
      TcpPair* const pair = by_node_[events[i].data.u64];
      if ((events[i].events & EPOLLOUT) != 0) pair->OnWritable();
      // Also on EPOLLERR and EPOLLHUP: reading returns the error.
      if ((events[i].events & ~EPOLLOUT) != 0) pair->OnReadable();
    }
  }
}

}  // namespace maypole::worker
