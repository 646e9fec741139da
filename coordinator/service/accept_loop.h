// AcceptLoop: accepts the coordinator's TCP connections and passes them to
// gRPC.
//
// Purpose: once gRPC's own listener has run out of descriptors, it never
// accepts again, so a flood of connections would block all callers permanently.
// AcceptLoop reserves some descriptors: when only these are left, it closes new
// connections at once, and it accepts again when descriptors are free.
// Connected executors are not affected.
//
//   auto loop = AcceptLoop::Listen({"0.0.0.0", 4001}, 20'000);
//   (*loop)->Open(builder.experimental().AddExternalConnectionAcceptor(...));
//
// Thread contract: call Open() once, and Close() once, from any thread, before
// the gRPC server is destroyed. The AcceptLoop accepts on its own thread.
#ifndef MAYPOLE_COORDINATOR_SERVICE_ACCEPT_LOOP_H_
#define MAYPOLE_COORDINATOR_SERVICE_ACCEPT_LOOP_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/program/address.h"
#include "common/system/fd.h"
#include "grpcpp/server_builder.h"

namespace maypole::coordinator {

// How many descriptors connections cannot use (they are for metrics, files and
// libraries); a quarter of all descriptors if that is less.
inline constexpr int kReservedDescriptors = 32;

class AcceptLoop {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  // Listens at all addresses of the name; 0.0.0.0 and [::] both mean all IPv4
  // and IPv6 addresses of the machine. Port 0 chooses a free port.
  // `user_timeout_ms`: a connection fails when its peer's kernel has not
  // acknowledged data for this long.
  static absl::StatusOr<std::unique_ptr<AcceptLoop>> Listen(
      const Address& address, int user_timeout_ms);
  ~AcceptLoop();

  int port() const { return port_; }
  void Open(std::unique_ptr<Acceptor> acceptor);
  void Close();

 private:
  AcceptLoop() = default;
  void Run();
  void Accept(int listener);

  std::vector<Fd> listeners_;
  Fd wake_;
  int port_ = 0;
  int most_ = 0;  // the first reserved descriptor number
  bool crowded_ = false;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_ACCEPT_LOOP_H_
