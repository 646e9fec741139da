// FakeListener: a TCP server on a local port, for tests, whose handler may
// misbehave as the test needs.
//
//   FakeListener silent([](FakeListener::Caller& c) { c.Wait(); });
//   DiagnoseTls(silent.address(), tls);
//
// Thread contract: each connection calls the handler on its own thread and is
// closed when the handler returns. The destructor ends all connections: Wait(),
// Send() and Read() return then.
#ifndef MAYPOLE_COMMON_PROGRAM_TESTING_FAKE_LISTENER_H_
#define MAYPOLE_COMMON_PROGRAM_TESTING_FAKE_LISTENER_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/system/fd.h"

namespace maypole {

class FakeListener {
 public:
  class Caller {
   public:
    explicit Caller(int fd) : fd_(fd) {}
    // False if the caller has hung up, or the listener is being destroyed.
    bool Send(const std::string& bytes) {
      return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
             static_cast<ssize_t>(bytes.size());
    }
    // Blocks until at least one byte has come; empty in the same two cases.
    std::string Read() {
      char bytes[4096];
      const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
      return n <= 0 ? "" : std::string(bytes, static_cast<size_t>(n));
    }
    // Blocks until the caller hangs up.
    void Wait() {
      while (!Read().empty()) {
      }
    }

   private:
    const int fd_;
  };
  using Handler = std::function<void(Caller&)>;

  // Port 0 chooses a free port.
  explicit FakeListener(Handler handler, int port = 0)
      : handler_(std::move(handler)),
        listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), size) != 0 ||
        listen(listener_.get(), 64) != 0 ||
        getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size) !=
            0) {
      return;
    }
    port_ = ntohs(at.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeListener() {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      for (const Fd& fd : sockets_) shutdown(fd.get(), SHUT_RDWR);
    }
    shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    for (std::thread& t : threads_) t.join();
  }

  int port() const { return port_; }  // 0 if it could not listen
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  void Run() {
    for (;;) {
      Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::lock_guard lock(mutex_);
      if (closing_ || !fd.valid()) return;
      threads_.emplace_back([this, socket = fd.get()] {
        Caller caller(socket);
        handler_(caller);
        shutdown(socket, SHUT_RDWR);
      });
      sockets_.push_back(std::move(fd));
    }
  }

  const Handler handler_;
  Fd listener_;
  int port_ = 0;
  std::mutex mutex_;
  bool closing_ = false;
  std::vector<Fd> sockets_;           // kept open, so that fds are not reused
  std::vector<std::thread> threads_;  // of the connections
  std::thread thread_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_TESTING_FAKE_LISTENER_H_
