// AdminService: the gRPC service for operators; see proto/admin.proto.
//
// Thread contract: gRPC calls the methods on its own threads. A client that
// follows events occupies one until it hangs up.
#ifndef MAYPOLE_COORDINATOR_SERVICE_ADMIN_SERVICE_H_
#define MAYPOLE_COORDINATOR_SERVICE_ADMIN_SERVICE_H_

#include <string>
#include <utility>

#include "coordinator/service/hub.h"
#include "proto/admin.grpc.pb.h"

namespace maypole::coordinator {

class AdminService final : public proto::Admin::Service {
 public:
  // `hub` must outlive the service.
  AdminService(Hub* hub, std::string secret)
      : hub_(hub), secret_(std::move(secret)) {}

  grpc::Status GetStatus(grpc::ServerContext* context,
                         const proto::StatusRequest* request,
                         proto::StatusReply* reply) override;
  grpc::Status WatchEvents(grpc::ServerContext* context,
                           const proto::EventsRequest* request,
                           grpc::ServerWriter<proto::Event>* writer) override;
  grpc::Status AbortJob(grpc::ServerContext* context,
                        const proto::AbortRequest* request,
                        proto::AbortReply* reply) override;
  grpc::Status DrainNode(grpc::ServerContext* context,
                         const proto::DrainRequest* request,
                         proto::DrainReply* reply) override;

 private:
  Hub* const hub_;
  const std::string secret_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_ADMIN_SERVICE_H_
