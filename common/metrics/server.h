// MetricsServer: answers GET /metrics, for Prometheus.
//
// Purpose: prometheus-cpp's own server uses one thread per connection and
// allows each half a minute, so a few connections that send nothing block all
// others. Here one thread serves all connections, and none can block it:
//
//   a connection                         is closed
//   that has not sent its request        after 5 s
//   that does not read its reply         after 10 s
//   that sends over kMaxRequestBytes     immediately
//   that is the oldest of the network    when there would be more than
//   with the most (strangers.h)          kMaxConnections
//
// Each connection serves one request. There is no compression and no other
// page.
//
//   auto server = MetricsServer::Start({"0.0.0.0", 9401}, {a, b});
//   if (!server.ok()) ...print the message...
//   (*server)->port();
//
// Thread contract: the server's thread calls the Collectables until the
// server's destructor has returned. The destructor does not wait for
// connections.
#ifndef MAYPOLE_COMMON_METRICS_SERVER_H_
#define MAYPOLE_COMMON_METRICS_SERVER_H_

#include <prometheus/collectable.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/program/address.h"
#include "common/program/strangers.h"
#include "common/system/event_loop.h"
#include "common/system/fd.h"

namespace maypole {

class MetricsServer {
 public:
  static constexpr size_t kMaxConnections = 64;
  static constexpr size_t kMaxRequestBytes = 8192;
  struct Times {
    std::chrono::milliseconds request{5000};
    std::chrono::milliseconds reply{10000};
  };
  using Collectables = std::vector<std::shared_ptr<prometheus::Collectable>>;

  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const Address& address, Collectables collectables, Times times);
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const Address& address, Collectables collectables) {
    return Start(address, std::move(collectables), Times());
  }
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const { return port_; }

 private:
  struct Connection {
    WatchedFd fd;
    std::string request;
    std::string reply;  // the part that is not yet written
    EventLoop::Time deadline;
  };
  using Connections = Strangers<Connection>;

  MetricsServer(Collectables collectables, Times times)
      : collectables_(std::move(collectables)), times_(times) {}

  absl::Status Listen(const Address& address);
  void Run();
  void Accept(WatchedFd* listener);
  void Add(Fd fd);
  void Read(Connections::Iterator connection);
  void Write(Connections::Iterator connection);
  void DropOverdue();
  // Closes a connection that has not received its whole reply.
  void Drop(Connections::Iterator connection);
  std::string ReplyTo(const std::string& request) const;
  std::string Page() const;

  const Collectables collectables_;
  const Times times_;
  int port_ = 0;
  EventLoop loop_;
  std::vector<WatchedFd> listeners_;
  Connections connections_{kMaxConnections};
  // Set when the process is out of descriptors: accepts again when it expires.
  LoopTimer accept_again_{&loop_, [this] {
                            for (WatchedFd& l : listeners_) l.WantRead(true);
                          }};
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_METRICS_SERVER_H_
