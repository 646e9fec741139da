#include "coordinator/service/admin_service.h"

#include <chrono>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace maypole::coordinator {
namespace {

// How often to check whether a follower has hung up.
constexpr std::chrono::milliseconds kLookAgain(500);

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()));
}

template <typename Reply>
grpc::Status Answer(absl::StatusOr<Reply> from, Reply* reply) {
  if (!from.ok()) return ToGrpc(from.status());
  *reply = *std::move(from);
  return grpc::Status::OK;
}

// Not UNAVAILABLE: this coordinator answers, and the caller must choose
// another.
grpc::Status CheckLeads(const Hub& hub) {
  const absl::Status leads = hub.CheckLeads();
  if (leads.ok()) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                      std::string(leads.message()));
}

// An event that replaces those that were dropped before the reader got them.
proto::Event Forgotten(uint64_t number, uint64_t count) {
  proto::Event event;
  event.set_number(number);
  event.set_level("warning");
  event.set_kind("events_forgotten");
  event.set_text(absl::StrCat("event=events_forgotten count=", count));
  return event;
}

// False if the reader has hung up.
bool Write(const EventRing::Page& page, uint64_t asked_after,
           grpc::ServerWriter<proto::Event>* writer) {
  // A reader that asks for all events does not expect the dropped ones.
  if (page.forgotten > 0 && asked_after > 0 &&
      !writer->Write(Forgotten(asked_after + page.forgotten, page.forgotten))) {
    return false;
  }
  for (const EventRing::Event& event : page.events) {
    if (!writer->Write(*event)) return false;
  }
  return true;
}

grpc::Status Follow(const proto::EventsRequest& request, uint64_t after,
                    EventLog* events, grpc::ServerContext* context,
                    grpc::ServerWriter<proto::Event>* writer) {
  while (!context->IsCancelled()) {
    const bool goes_on = events->Wait(after, kLookAgain);
    const EventRing::Page page = events->Read(request.job(), after);
    if (!Write(page, after, writer)) break;
    if (!goes_on && page.after == after) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE,
                          "the coordinator was stopped by its operator");
    }
    after = page.after;
  }
  return grpc::Status::CANCELLED;
}

}  // namespace

grpc::Status AdminService::CheckOrder(
    const grpc::ServerContext& context) const {
  const grpc::Status authentic = authenticator_->Check(context, Role::kAdmin);
  return authentic.ok() ? CheckLeads(*hub_) : authentic;
}

grpc::Status AdminService::GetStatus(grpc::ServerContext* context,
                                     const proto::StatusRequest* request,
                                     proto::StatusReply* reply) {
  const grpc::Status authentic = authenticator_->Check(*context, Role::kAdmin);
  if (!authentic.ok()) return authentic;
  return Answer(hub_->Status(*request), reply);
}

grpc::Status AdminService::WatchEvents(
    grpc::ServerContext* context, const proto::EventsRequest* request,
    grpc::ServerWriter<proto::Event>* writer) {
  if (const grpc::Status may = CheckOrder(*context); !may.ok()) return may;
  EventLog* const events = hub_->events();
  if (!events->BeginToFollow()) {
    return grpc::Status(
        grpc::StatusCode::RESOURCE_EXHAUSTED,
        absl::StrCat(kMaxFollowers,
                     " callers read events already, which is the limit; stop "
                     "one of them"));
  }
  // The initial metadata tells the caller that it gets all events from now on.
  writer->SendInitialMetadata();
  uint64_t after = request->after();
  bool alive = true;
  bool more = true;
  while (alive && more) {
    const EventRing::Page page = events->Read(request->job(), after);
    alive = Write(page, after, writer);
    more = page.after > after;
    after = page.after;
  }
  grpc::Status status = grpc::Status::OK;
  if (alive && request->follow()) {
    status = Follow(*request, after, events, context, writer);
  }
  events->EndToFollow();
  return status;
}

grpc::Status AdminService::AbortJob(grpc::ServerContext* context,
                                    const proto::AbortRequest* request,
                                    proto::AbortReply* reply) {
  if (const grpc::Status may = CheckOrder(*context); !may.ok()) return may;
  return Answer(hub_->Order(&CoordinatorCore::Abort, *request), reply);
}

grpc::Status AdminService::DrainNode(grpc::ServerContext* context,
                                     const proto::DrainRequest* request,
                                     proto::DrainReply* reply) {
  if (const grpc::Status may = CheckOrder(*context); !may.ok()) return may;
  return Answer(hub_->Order(&CoordinatorCore::Drain, *request), reply);
}

grpc::Status AdminService::RecordTimeline(
    grpc::ServerContext* context, const proto::RecordTimelineRequest* request,
    proto::RecordTimelineReply* reply) {
  if (const grpc::Status may = CheckOrder(*context); !may.ok()) return may;
  return Answer(hub_->Order(&CoordinatorCore::RecordTimeline, *request), reply);
}

grpc::Status AdminService::MakeDashboardLink(
    grpc::ServerContext* context, const proto::DashboardRequest* request,
    proto::DashboardReply* reply) {
  if (const grpc::Status may = CheckOrder(*context); !may.ok()) return may;
  if (dashboard_ == nullptr) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                        "the coordinator has no dashboard; start it with "
                        "--dashboard=HOST:PORT");
  }
  reply->set_address(dashboard_->address().Text());
  reply->set_tls(dashboard_->tls());
  reply->set_token(dashboard_->MakeToken(request->control()));
  reply->set_valid_seconds(
      static_cast<uint32_t>(std::chrono::seconds(kTokenTime).count()));
  return grpc::Status::OK;
}

}  // namespace maypole::coordinator
