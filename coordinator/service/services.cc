#include "coordinator/service/services.h"

#include <memory>
#include <string>

#include "coordinator/service/authenticate.h"
#include "coordinator/service/peer.h"
#include "coordinator/service/stream_writer.h"

namespace maypole::coordinator {

grpc::Status CoordinatorService::Session(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<proto::CoordinatorMessage, proto::ExecutorMessage>*
        stream) {
  const grpc::Status authentic =
      Authenticate(*context, Role::kExecutor, secret_);
  if (!authentic.ok()) return authentic;
  // No Refused message: the executor must try again, here or at the leader.
  if (const absl::Status leads = hub_->CheckLeads(); !leads.ok()) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE,
                        std::string(leads.message()));
  }
  // Shared, because the hub's threads may still push when this call has ended.
  const auto writer =
      std::make_shared<StreamWriter>(context, stream, hub_->leadership());
  const absl::StatusOr<StreamId> id = hub_->Add(writer);
  if (!id.ok()) {
    writer->Close(id.status());
    return writer->Finish();
  }
  proto::ExecutorMessage message;
  while (!writer->closing() && stream->Read(&message)) {
    if (message.has_hello()) {
      message.mutable_hello()->set_seen_address(PeerAddress(context->peer()));
    }
    hub_->Received(*id, message);
  }
  hub_->Remove(
      *id, context->IsCancelled() ? StreamEnd::kBroken : StreamEnd::kFinished);
  return writer->Finish();
}

}  // namespace maypole::coordinator
