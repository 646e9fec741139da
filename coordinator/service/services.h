// The gRPC services: executors' streams and the operator's calls.
//
// Thread contract: gRPC calls the methods from threads of its own.
#ifndef MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_
#define MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_

#include <string>
#include <utility>

#include "coordinator/service/hub.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"

namespace maypole::coordinator {

class CoordinatorService final : public proto::Coordinator::Service {
 public:
  // `hub` outlives the service.
  CoordinatorService(Hub* hub, std::string secret)
      : hub_(hub), secret_(std::move(secret)) {}

  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<proto::CoordinatorMessage,
                               proto::ExecutorMessage>* stream) override;

 private:
  Hub* const hub_;
  const std::string secret_;
};

class AdminService final : public proto::Admin::Service {
 public:
  AdminService(Hub* hub, std::string secret)
      : hub_(hub), secret_(std::move(secret)) {}

  grpc::Status GetStatus(grpc::ServerContext* context,
                         const proto::StatusRequest* request,
                         proto::StatusReply* reply) override;

 private:
  Hub* const hub_;
  const std::string secret_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_
