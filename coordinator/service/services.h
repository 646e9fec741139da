// CoordinatorService: the gRPC service for the executors' streams.
//
// Thread contract: gRPC calls the methods on its own threads; none blocks.
#ifndef MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_
#define MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_

#include <string>
#include <utility>

#include "coordinator/service/hub.h"
#include "coordinator/service/session_stream.h"
#include "proto/coordinator.grpc.pb.h"

namespace maypole::coordinator {

// Messages are bytes here, because those to executors are serialized already.
class CoordinatorService final
    : public proto::Coordinator::WithRawCallbackMethod_Session<
          proto::Coordinator::Service> {
 public:
  // `hub` must outlive the service.
  CoordinatorService(Hub* hub, std::string secret)
      : hub_(hub), secret_(std::move(secret)) {}

  SessionStream::Reactor* Session(
      grpc::CallbackServerContext* context) override;

 private:
  Hub* const hub_;
  const std::string secret_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_
