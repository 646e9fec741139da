#include "client/ctl/connection.h"

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/text.h"
#include "common/absl_status.h"
#include "common/program/address.h"
#include "common/program/secret.h"
#include "common/program/secret_file.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"

namespace maypole::ctl {
namespace {

// Pings detect a coordinator that is gone without closing its connections.
constexpr int kPingMs = 2000;
// More than any status reply has.
constexpr int kMaxReplyBytes = 64 << 20;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const TlsOptions& tls,
                                           int timeout_s) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // This is how long the attempt to connect may take: longer than a call, so
  // that the call's deadline is what ends it.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, (timeout_s + 1) * 1000);
  args.SetMaxReceiveMessageSize(kMaxReplyBytes);
  SetServerName(tls, &args);
  return grpc::CreateCustomChannel(address, ClientCredentials(tls), args);
}

// gRPC wraps the reason: "failed to connect to all addresses; last error:
// UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host:
// Connection refused". Returns the last part.
std::string Reason(const std::string& text) {
  const size_t at = text.rfind(": ");
  return Printable(at == std::string::npos ? text : text.substr(at + 2));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorClient>> CoordinatorClient::Make(
    const CtlOptions& options) {
  const auto address = ParseAddress("--coordinator", options.coordinator);
  if (!address.ok()) return address.status();
  std::string secret;
  const std::string& file = options.operator_secret_file.empty()
                                ? options.secret_file
                                : options.operator_secret_file;
  if (!file.empty()) {
    const maypole::Status read = ReadSecretFile(file, &secret);
    if (!read.ok()) return ToAbsl(read);
  }
  auto tls = ReadTlsFiles(options.tls_ca, options.tls_cert, options.tls_key);
  if (!tls.ok()) return tls.status();
  tls->server_name = options.tls_server_name;
  return std::unique_ptr<CoordinatorClient>(
      new CoordinatorClient(options, std::move(secret), *std::move(tls)));
}

CoordinatorClient::CoordinatorClient(const CtlOptions& options,
                                     std::string secret, TlsOptions tls)
    : address_(options.coordinator),
      timeout_s_(options.timeout_s),
      secret_(std::move(secret)),
      tls_(std::move(tls)),
      stub_(proto::Admin::NewStub(MakeChannel(address_, tls_, timeout_s_))) {}

void CoordinatorClient::Prepare(grpc::ClientContext* context) const {
  if (!secret_.empty()) context->AddMetadata(kSecretMetadata, secret_);
}

absl::Status CoordinatorClient::Explain(const grpc::Status& status) const {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  const std::string who = absl::StrCat("coordinator ", address_);
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return absl::OkStatus();
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::Status(
          code, absl::StrCat(who, " did not answer within ", timeout_s_,
                             " s; check that it runs and can be reached, or "
                             "raise --timeout"));
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::Status(
          code,
          absl::StrCat(who,
                       " does not know this call: it has another version, "
                       "or the server there is not a coordinator"
                       " (is this its metrics port?)"));
    case grpc::StatusCode::UNAVAILABLE:
      break;
    default:
      return absl::Status(
          code,
          absl::StrCat(who, ": ",
                       status.error_message().empty()
                           ? absl::StrCat("it answers ",
                                          absl::StatusCodeToString(code),
                                          " and says nothing more")
                           : Printable(status.error_message())));
  }
  if (absl::StrContains(status.error_message(), "stopped by its operator")) {
    return absl::UnavailableError(absl::StrCat(who, " has been stopped"));
  }
  // gRPC's errors when the server speaks HTTP/1.
  if (absl::StrContains(status.error_message(), "parsing HTTP/2") ||
      absl::StrContains(status.error_message(), "http1.x server")) {
    return absl::UnavailableError(
        absl::StrCat("the server at ", address_,
                     " is not a coordinator (is this its metrics port?); set "
                     "the address with --coordinator=HOST:PORT or "
                     "MAYPOLE_COORDINATOR"));
  }
  const std::string tls = DiagnoseTls(address_, tls_);
  return absl::UnavailableError(absl::StrCat(
      "no answer from ", who, ": ",
      tls.empty() ? absl::StrCat(Reason(status.error_message()),
                                 "; is it running? --coordinator=HOST:PORT or "
                                 "MAYPOLE_COORDINATOR sets its address")
                  : tls));
}

template <typename Request, typename Reply>
absl::StatusOr<Reply> CoordinatorClient::Call(
    grpc::Status (proto::Admin::Stub::*method)(grpc::ClientContext*,
                                               const Request&, Reply*),
    const Request& request) {
  grpc::ClientContext context;
  Prepare(&context);
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(timeout_s_));
  Reply reply;
  const grpc::Status status = (stub_.get()->*method)(&context, request, &reply);
  if (!status.ok()) return Explain(status);
  return reply;
}

absl::StatusOr<proto::StatusReply> CoordinatorClient::Status(
    const std::string& job, bool stats) {
  proto::StatusRequest request;
  request.set_job(job);
  request.set_stats(stats);
  return Call(&proto::Admin::Stub::GetStatus, request);
}

absl::StatusOr<proto::DashboardReply> CoordinatorClient::MakeDashboardLink(
    bool control) {
  proto::DashboardRequest request;
  request.set_control(control);
  return Call(&proto::Admin::Stub::MakeDashboardLink, request);
}

absl::StatusOr<proto::RecordTimelineReply> CoordinatorClient::RecordTimeline(
    const proto::RecordTimelineRequest& request) {
  return Call(&proto::Admin::Stub::RecordTimeline, request);
}

absl::StatusOr<proto::AbortReply> CoordinatorClient::Abort(
    const proto::AbortRequest& request) {
  return Call(&proto::Admin::Stub::AbortJob, request);
}

absl::StatusOr<proto::DrainReply> CoordinatorClient::Drain(
    const proto::DrainRequest& request) {
  return Call(&proto::Admin::Stub::DrainNode, request);
}

absl::Status CoordinatorClient::Watch(
    const proto::EventsRequest& request,
    const std::function<bool(const proto::Event&)>& on_event) {
  grpc::ClientContext context;
  Prepare(&context);
  auto reader = stub_->WatchEvents(&context, request);
  proto::Event event;
  while (reader->Read(&event)) {
    if (on_event(event)) continue;
    context.TryCancel();
    reader->Finish();
    return absl::OkStatus();
  }
  return Explain(reader->Finish());
}

}  // namespace maypole::ctl
