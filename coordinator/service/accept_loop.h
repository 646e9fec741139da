// AcceptLoop: accepts the coordinator's connections, for gRPC to serve.
//
// Purpose: gRPC's own listener never accepts again once it has run out of
// descriptors, so that a crowd of strangers would shut out everybody for good.
// This one keeps some descriptors back: who comes when only these are left is
// hung up on, and when the crowd has gone all is as before. Executors that are
// connected notice nothing.
//
//   auto door = AcceptLoop::Listen({"0.0.0.0", 4001});
//   door->Open(builder.experimental().AddExternalConnectionAcceptor(...));
//
// Thread contract: Open once; Close, before the gRPC server ends, from any one
// thread. A thread of its own accepts.
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

// Descriptors that connections do not get (metrics, files, a library's), or a
// quarter of all if that is less.
inline constexpr int kReservedDescriptors = 32;

class AcceptLoop {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  // All addresses of the name; 0.0.0.0 and [::] are all of the machine, of both
  // families. Port 0: any free one. `user_timeout_ms`: a connection whose
  // peer's kernel has not answered for so long has failed.
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
  int most_ = 0;  // first descriptor that is kept back
  bool crowded_ = false;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_ACCEPT_LOOP_H_
