#include "coordinator/service/services.h"

#include "coordinator/core/text.h"
#include "coordinator/service/peer.h"
#include "coordinator/service/secret.h"
#include "coordinator/service/stream_writer.h"
#include "spdlog/spdlog.h"

namespace maypole::coordinator {
namespace {

grpc::Status Authenticate(const grpc::ServerContext& context, Role role,
                          const std::string& secret) {
  grpc::Status status = Authorize(context, role, secret);
  if (!status.ok()) {
    spdlog::warn("event=unauthenticated peer={} reason={}", context.peer(),
                 LogValue(status.error_message()));
  }
  return status;
}

}  // namespace

grpc::Status CoordinatorService::Session(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<proto::CoordinatorMessage, proto::ExecutorMessage>*
        stream) {
  const grpc::Status authentic =
      Authenticate(*context, Role::kExecutor, secret_);
  if (!authentic.ok()) return authentic;
  StreamWriter writer(context, stream);
  const absl::StatusOr<StreamId> id = hub_->Add(&writer);
  if (!id.ok()) {
    writer.Close(id.status());
    return writer.Finish();
  }
  proto::ExecutorMessage message;
  while (!writer.closing() && stream->Read(&message)) {
    if (message.has_hello()) {
      message.mutable_hello()->set_seen_address(PeerAddress(context->peer()));
    }
    hub_->Received(*id, message);
  }
  hub_->Remove(
      *id, context->IsCancelled() ? StreamEnd::kBroken : StreamEnd::kFinished);
  return writer.Finish();
}

grpc::Status AdminService::GetStatus(grpc::ServerContext* context,
                                     const proto::StatusRequest* /*request*/,
                                     proto::StatusReply* reply) {
  const grpc::Status authentic =
      Authenticate(*context, Role::kAdmin, secret_);
  if (!authentic.ok()) return authentic;
  *reply = hub_->Status();
  return grpc::Status::OK;
}

}  // namespace maypole::coordinator
