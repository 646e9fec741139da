// AcceptLoop: accepts the coordinator's TCP connections and passes them to
// gRPC.
//
// Purpose: gRPC gives any caller that can reach the port memory for as many
// streams, headers and connections as it likes, and once its own listener has
// run out of descriptors, it never accepts again. So the AcceptLoop bounds what
// strangers get:
//
//   there is       a connection reaches gRPC  until then, or until it has
//                                             made a call with every right
//   no secret      at once                    -
//   a secret       with its first request,    it has kFirstCallTime, of which
//                  if that has a credential   kHandshakeTime for the preface,
//                  (credentials.h); else it   and kMaxFirstBytes; it is one of
//                  is told why not            kMaxStrangers
//   TLS            at once: gRPC checks the   gRPC gives it kHandshakeTime to
//                  certificate before it      show a certificate; it is one of
//                  reads a frame              kMaxTlsStrangers
//
// Beyond that number, or half of the descriptors, a new connection displaces
// the oldest one of the network that has the most (strangers.h). With TLS, that
// network's connections are safe from its own new ones for kTlsPlace; these are
// closed at once, because gRPC frees a handshake only when it has time. Some
// descriptors are reserved: when only these are left, new connections are
// closed at once until descriptors are free again. Connected executors are not
// affected by any of this.
//
//   auto loop = AcceptLoop::Listen({"0.0.0.0", 4001}, options);
//   (*loop)->Open(builder.experimental().AddExternalConnectionAcceptor(...));
//
// Thread contract: call Open() once, and Close() once, from any thread, before
// the gRPC server is destroyed. Any thread may call Admitted(). The AcceptLoop
// accepts and reads on its own thread.
#ifndef MAYPOLE_COORDINATOR_SERVICE_ACCEPT_LOOP_H_
#define MAYPOLE_COORDINATOR_SERVICE_ACCEPT_LOOP_H_

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/program/address.h"
#include "common/program/strangers.h"
#include "common/system/event_loop.h"
#include "common/system/fd.h"
#include "coordinator/service/credentials.h"
#include "coordinator/service/first_request.h"
#include "coordinator/service/refusals.h"
#include "grpcpp/server_builder.h"

namespace maypole::coordinator {

// Descriptors that connections cannot use (they are for metrics, files and
// libraries); a quarter of all descriptors if that is less.
inline constexpr int kReservedDescriptors = 32;

// A connection is closed if its handshake (TLS, HTTP/2) takes longer, or if it
// has made no call for kFirstCallTime.
inline constexpr std::chrono::seconds kHandshakeTime(5);
inline constexpr std::chrono::seconds kFirstCallTime(30);
// 4,096 first requests take 32 MB at most; a TLS handshake in gRPC takes 100 to
// 170 KB.
inline constexpr size_t kMaxStrangers = 4096;
inline constexpr size_t kMaxTlsStrangers = 256;
inline constexpr std::chrono::seconds kTlsPlace(1);
// How long a refused caller has to read why.
inline constexpr std::chrono::seconds kRefusalTime(2);

struct AcceptOptions {
  // A connection fails when its peer's kernel has not acknowledged data for
  // this long.
  int user_timeout_ms = 0;
  Credentials credentials;
  // The same secrets in Huffman's code (first_request.h).
  Credentials huffman_credentials;
  bool tls = false;
  Refusals* refusals = nullptr;  // must outlive the AcceptLoop
};

class AcceptLoop {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  // Listens at all addresses of the name; 0.0.0.0 and [::] both mean all IPv4
  // and IPv6 addresses of the machine. Port 0 chooses a free port.
  static absl::StatusOr<std::unique_ptr<AcceptLoop>> Listen(
      const Address& address, const AcceptOptions& options);
  ~AcceptLoop();

  int port() const { return port_; }
  void Open(std::unique_ptr<Acceptor> acceptor);
  void Close();

  // The peer (grpc::ServerContext::peer()) has made an authorized call.
  void Admitted(const std::string& peer);

 private:
  // A connection that has not yet made such a call.
  struct Caller {
    WatchedFd fd;  // without TLS; gRPC does not have it yet
    FirstRequest first;
    bool refused = false;  // has been told why
    Fd copy;               // with TLS; the connection is gRPC's
    std::string peer;
    EventLoop::Time deadline;
    EventLoop::Time last_deadline;
  };
  using Callers = Strangers<Caller>;

  explicit AcceptLoop(const AcceptOptions& options);
  void Run();
  void Tick();
  void Accept(int listener);
  void WatchListeners(bool wanted);
  bool IsCrowded(int descriptor);
  void PassToGrpc(int fd, const std::string& first);
  void Add(Fd fd);
  void Read(Callers::Iterator caller);
  void Decide(Callers::Iterator caller);
  // Makes room for a new caller; false if the new caller itself must go.
  bool DropSurplus(Callers::Iterator newcomer);

  const AcceptOptions options_;
  EventLoop loop_;
  std::vector<WatchedFd> listeners_;
  int port_ = 0;
  const int most_;  // the first reserved descriptor number
  bool crowded_ = false;
  Callers callers_;
  LoopTimer tick_{&loop_, [this] { Tick(); }};
  // Set when the process is out of descriptors: accepts again when it expires.
  LoopTimer accept_again_{&loop_, [this] { WatchListeners(true); }};
  bool stopped_ = false;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_ACCEPT_LOOP_H_
