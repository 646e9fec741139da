#include "coordinator/service/accept_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "common/absl_status.h"
#include "common/program/listener.h"
#include "spdlog/spdlog.h"

namespace maypole::coordinator {
namespace {

// How long to wait when no descriptor is left at all.
constexpr std::chrono::milliseconds kPause(50);

}  // namespace

absl::StatusOr<std::unique_ptr<AcceptLoop>> AcceptLoop::Listen(
    const Address& address, int user_timeout_ms) {
  absl::StatusOr<TcpListener> listener =
      ListenTcp(address, {.user_timeout_ms = user_timeout_ms});
  if (!listener.ok()) return listener.status();
  std::unique_ptr<AcceptLoop> accept_loop(new AcceptLoop);
  accept_loop->listeners_ = std::move(listener->fds);
  accept_loop->port_ = listener->port;
  accept_loop->wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  // Without the eventfd Close() could not end the thread.
  if (!accept_loop->wake_.valid()) return ToAbsl(ErrnoStatus(errno, "eventfd"));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
  accept_loop->most_ = most - std::min(kReservedDescriptors, most / 4);
  return accept_loop;
}

AcceptLoop::~AcceptLoop() { Close(); }

void AcceptLoop::Open(std::unique_ptr<Acceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
}

void AcceptLoop::Close() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  listeners_.clear();
}

void AcceptLoop::Run() {
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
  for (const Fd& l : listeners_) fds.push_back({l.get(), POLLIN, 0});
  for (;;) {
    poll(fds.data(), fds.size(), -1);
    if (fds[0].revents != 0) return;
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents != 0) Accept(fds[i].fd);
    }
  }
}

void AcceptLoop::Accept(int listener) {
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(kPause);
    return;
  }
  // The kernel assigns the lowest free number.
  const bool crowded = fd.get() >= most_;
  if (crowded != crowded_) {
    crowded_ = crowded;
    if (crowded) {
      spdlog::warn(
          "event=crowded open_files={} hint=\"new connections are closed; "
          "raise the limit (ulimit -n), or find out which clients connect\"",
          most_);
    } else {
      spdlog::info("event=not_crowded");
    }
  }
  if (crowded) return;
  Acceptor::NewConnectionParameters connection;
  connection.listener_fd = listener;
  connection.fd = fd.Release();
  acceptor_->HandleNewConnection(&connection);
}

}  // namespace maypole::coordinator
