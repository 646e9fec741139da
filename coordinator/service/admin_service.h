// AdminService: the gRPC service for operators; see proto/admin.proto.
//
// Thread contract: gRPC calls the methods on its own threads. A client that
// follows events occupies one until it hangs up.
#ifndef MAYPOLE_COORDINATOR_SERVICE_ADMIN_SERVICE_H_
#define MAYPOLE_COORDINATOR_SERVICE_ADMIN_SERVICE_H_

#include "coordinator/service/authenticate.h"
#include "coordinator/service/dashboard.h"
#include "coordinator/service/hub.h"
#include "proto/admin.grpc.pb.h"

namespace maypole::coordinator {

class AdminService final : public proto::Admin::Service {
 public:
  // `hub` and `authenticator` must outlive the service.
  AdminService(Hub* hub, const Authenticator* authenticator)
      : hub_(hub), authenticator_(authenticator) {}

  // Must be called before the first RPC. null: no dashboard. It must outlive
  // the service.
  void SetDashboard(Dashboard* dashboard) { dashboard_ = dashboard; }

  grpc::Status GetStatus(grpc::ServerContext* context,
                         const proto::StatusRequest* request,
                         proto::StatusReply* reply) override;
  grpc::Status WatchEvents(grpc::ServerContext* context,
                           const proto::EventsRequest* request,
                           grpc::ServerWriter<proto::Event>* writer) override;
  grpc::Status RecordTimeline(grpc::ServerContext* context,
                              const proto::RecordTimelineRequest* request,
                              proto::RecordTimelineReply* reply) override;
  grpc::Status AbortJob(grpc::ServerContext* context,
                        const proto::AbortRequest* request,
                        proto::AbortReply* reply) override;
  grpc::Status DrainNode(grpc::ServerContext* context,
                         const proto::DrainRequest* request,
                         proto::DrainReply* reply) override;
  grpc::Status MakeDashboardLink(grpc::ServerContext* context,
                                 const proto::DashboardRequest* request,
                                 proto::DashboardReply* reply) override;

 private:
  // OK if an operator calls, and this coordinator leads.
  grpc::Status CheckOrder(const grpc::ServerContext& context) const;

  Hub* const hub_;
  const Authenticator* const authenticator_;
  Dashboard* dashboard_ = nullptr;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_ADMIN_SERVICE_H_
