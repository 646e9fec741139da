// Server: the whole coordinator in one object, for main() and tests.
//
//   absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
//   if (!server.ok()) ...print the message...
//   (*server)->listen();      // 127.0.0.1:40001
//   (*server)->Shutdown();
//
// Thread contract: call Shutdown() once; any thread may call the accessors.
#ifndef MAYPOLE_COORDINATOR_SERVICE_SERVER_H_
#define MAYPOLE_COORDINATOR_SERVICE_SERVER_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/program/address.h"
#include "common/program/tls.h"
#include "coordinator/core/actions.h"
#include "coordinator/election/leadership.h"
#include "coordinator/service/accept_loop.h"
#include "coordinator/service/admin_service.h"
#include "coordinator/service/authenticate.h"
#include "coordinator/service/dashboard.h"
#include "coordinator/service/hub.h"
#include "coordinator/service/metrics.h"
#include "coordinator/service/refusals.h"
#include "coordinator/service/services.h"
#include "grpcpp/server.h"

namespace maypole::coordinator {

struct ServerOptions {
  Address listen{"127.0.0.1", 0};
  std::optional<Address> metrics;    // nullopt: no metrics
  std::optional<Address> dashboard;  // nullopt: no dashboard
  // See credentials.h. No secret: every executor is admitted.
  std::string secret;
  std::string operator_secret;
  TlsOptions tls;  // off: connections are not encrypted
  Config config;
  // Null: this coordinator is the only one. Must outlive the server.
  const Leadership* leadership = nullptr;
};

class Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The addresses, with the actual ports.
  const Address& listen() const { return options_.listen; }
  const std::optional<Address>& metrics() const { return options_.metrics; }
  // Null if there is none.
  const Dashboard* dashboard() const { return dashboard_.get(); }

  // Identifies this life of the coordinator.
  const std::string& incarnation() const { return incarnation_; }

  // Tells the executors, ends their streams, and stops all threads. If another
  // coordinator can lead, the streams just break: the executors go there.
  void Shutdown();

 private:
  explicit Server(const ServerOptions& options);
  absl::Status Listen();
  absl::Status ServeMetrics();

  ServerOptions options_;  // once it listens, with the actual ports
  const std::string incarnation_;
  Metrics metrics_;
  Hub hub_;
  Refusals refusals_;
  Authenticator authenticator_;
  CoordinatorService coordinator_;
  std::unique_ptr<Dashboard> dashboard_;
  AdminService admin_;
  std::unique_ptr<AcceptLoop> accept_loop_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_SERVER_H_
