// CoordinatorService: the gRPC service for the executors' streams.
//
// Thread contract: gRPC calls the methods on its own threads; none blocks.
#ifndef MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_
#define MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_

#include "coordinator/service/authenticate.h"
#include "coordinator/service/hub.h"
#include "coordinator/service/session_stream.h"
#include "proto/coordinator.grpc.pb.h"

namespace maypole::coordinator {

// Messages are bytes here, because those to executors are serialized already.
class CoordinatorService final
    : public proto::Coordinator::WithRawCallbackMethod_Session<
          proto::Coordinator::Service> {
 public:
  // `hub` and `authenticator` must outlive the service.
  CoordinatorService(Hub* hub, const Authenticator* authenticator)
      : hub_(hub), authenticator_(authenticator) {}

  SessionStream::Reactor* Session(
      grpc::CallbackServerContext* context) override;

 private:
  Hub* const hub_;
  const Authenticator* const authenticator_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_SERVICES_H_
