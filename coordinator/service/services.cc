#include "coordinator/service/services.h"

#include <string>

namespace maypole::coordinator {
namespace {

// A stream that ends with an error before anything is read.
class RefusedStream final : public SessionStream::Reactor {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

SessionStream::Reactor* CoordinatorService::Session(
    grpc::CallbackServerContext* context) {
  std::string only_job;
  const grpc::Status authentic =
      authenticator_->Check(*context, Role::kExecutor, &only_job);
  if (!authentic.ok()) return new RefusedStream(authentic);
  // No Refused message: the executor must try again, here or at the leader.
  if (const absl::Status leads = hub_->CheckLeads(); !leads.ok()) {
    return new RefusedStream(grpc::Status(grpc::StatusCode::UNAVAILABLE,
                                          std::string(leads.message())));
  }
  return SessionStream::Start(
      context, hub_,
      [this, peer = context->peer(), only_job](const std::string& job) {
        return authenticator_->CheckJob(peer, only_job, job);
      });
}

}  // namespace maypole::coordinator
