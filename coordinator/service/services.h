// CoordinatorService: the gRPC service for the executors' streams.
//
// Thread contract: gRPC calls the methods on its own threads; Session() blocks
// until the stream ends.
#ifndef MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_
#define MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_

#include <string>
#include <utility>

#include "coordinator/service/hub.h"
#include "proto/coordinator.grpc.pb.h"

namespace maypole::coordinator {

class CoordinatorService final : public proto::Coordinator::Service {
 public:
  // `hub` must outlive the service.
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

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_
