#include "coordinator/service/server.h"

#include <chrono>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/limits.h"
#include "grpc/grpc.h"
#include "grpcpp/server_builder.h"

namespace maypole::coordinator {
namespace {

// Pings detect a peer that has vanished (power or network failure).
constexpr int kPingIntervalMs = 2000;
constexpr int kPingTimeoutMs = 2000;
// Executors ping as often as we do; gRPC's default would treat that as abuse.
constexpr int kLeastPingIntervalMs = 500;
constexpr std::chrono::seconds kShutdownGrace(2);

std::string NewIncarnation() {
  std::random_device random;
  return absl::StrFormat("%08x%08x", random(), random());
}

int Milliseconds(std::chrono::milliseconds time) {
  return static_cast<int>(time.count());
}

void SetChannelArguments(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                              Milliseconds(kHandshakeTime));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                              Milliseconds(kFirstCallTime));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      kLeastPingIntervalMs);
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxSentBytes);
}

}  // namespace

Server::Server(const ServerOptions& options)
    : options_(options),
      incarnation_(NewIncarnation()),
      hub_(options.config, incarnation_, &metrics_, options.leadership),
      authenticator_(Credentials(options.secret, options.operator_secret),
                     &refusals_),
      coordinator_(&hub_, &authenticator_),
      admin_(&hub_, &authenticator_) {}

Server::~Server() { Shutdown(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options) {
  std::unique_ptr<Server> server(new Server(options));
  absl::Status status;
  if (options.dashboard) {
    auto dashboard =
        Dashboard::Start(*options.dashboard, options.tls, &server->hub_);
    if (!dashboard.ok()) return dashboard.status();
    server->dashboard_ = *std::move(dashboard);
    server->admin_.SetDashboard(server->dashboard_.get());
  }
  status = server->Listen();
  if (status.ok()) status = server->ServeMetrics();
  if (!status.ok()) return status;
  return server;
}

absl::Status Server::Listen() {
  absl::StatusOr<std::unique_ptr<AcceptLoop>> accept_loop = AcceptLoop::Listen(
      options_.listen,
      {.user_timeout_ms = kPingTimeoutMs,
       .credentials = Credentials(options_.secret, options_.operator_secret),
       .huffman_credentials =
           Credentials(HuffmanEncode(options_.secret),
                       HuffmanEncode(options_.operator_secret)),
       .tls = options_.tls.enabled(),
       .refusals = &refusals_});
  if (!accept_loop.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen: ", std::string(accept_loop.status().message()),
        "; choose another --listen, or end the program that holds the port"));
  }
  accept_loop_ = *std::move(accept_loop);
  options_.listen.port = accept_loop_->port();
  authenticator_.OnAdmitted(
      [this](const std::string& peer) { accept_loop_->Admitted(peer); });
  grpc::ServerBuilder builder;
  SetChannelArguments(&builder);
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  std::unique_ptr<AcceptLoop::Acceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(
          Type::FROM_FD, ServerCredentials(options_.tls));
  builder.RegisterService(&coordinator_);
  builder.RegisterService(&admin_);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    return absl::InternalError("gRPC cannot serve; use --log_level=debug");
  }
  accept_loop_->Open(std::move(acceptor));
  return absl::OkStatus();
}

absl::Status Server::ServeMetrics() {
  if (!options_.metrics) return absl::OkStatus();
  const absl::StatusOr<int> port = metrics_.Serve(
      *options_.metrics, [this] { return hub_.totals(); },
      [this] { return hub_.TakeStragglerTime(); }, options_.leadership);
  if (!port.ok()) return port.status();
  options_.metrics->port = *port;
  return absl::OkStatus();
}

void Server::Shutdown() {
  metrics_.StopServing();  // its thread calls the hub
  if (server_ == nullptr) return;
  if (accept_loop_ != nullptr) accept_loop_->Close();
  hub_.Stop();  // also ends the calls that follow events
  const bool others = options_.leadership != nullptr;
  server_->Shutdown(std::chrono::system_clock::now() +
                    (others ? std::chrono::seconds(0) : kShutdownGrace));
  server_->Wait();
  server_.reset();
}

}  // namespace maypole::coordinator
