#include "coordinator/service/services.h"

#include "coordinator/core/text.h"
#include "coordinator/service/secret.h"
#include "coordinator/service/stream_writer.h"
#include "spdlog/spdlog.h"

namespace maypole::coordinator {
namespace {

grpc::Status Authenticate(const grpc::ServerContext& context,
                          const std::string& secret) {
  grpc::Status status = CheckSecret(context, secret);
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
  const grpc::Status authentic = Authenticate(*context, secret_);
  if (!authentic.ok()) return authentic;
  StreamWriter writer(context, stream);
  const absl::StatusOr<StreamId> id = hub_->Add(&writer);
  if (!id.ok()) {
    writer.Close(id.status());
    return writer.Finish();
  }
  proto::ExecutorMessage message;
  while (!writer.closing() && stream->Read(&message)) {
    hub_->Received(*id, message);
  }
  hub_->Remove(
      *id, context->IsCancelled() ? StreamEnd::kBroken : StreamEnd::kFinished);
  return writer.Finish();
}

grpc::Status AdminService::GetStatus(grpc::ServerContext* context,
                                     const proto::StatusRequest* /*request*/,
                                     proto::StatusReply* reply) {
  const grpc::Status authentic = Authenticate(*context, secret_);
  if (!authentic.ok()) return authentic;
  *reply = hub_->Status();
  return grpc::Status::OK;
}

}  // namespace maypole::coordinator
