// SimulatedTransport: an executor's session with the coordinator.
//
// Purpose: does on simulated streams what worker/network/grpc_transport.h does
// with threads and gRPC, using the same session.h.
//
// Thread contract: not synchronized. Callbacks come from events of their own.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_TRANSPORT_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_TRANSPORT_H_

#include <memory>
#include <string>

#include "tests/simulation/parts/coordinator.h"
#include "worker/network/session.h"
#include "worker/network/transport.h"

namespace maypole::simulation {

class SimulatedTransport
    : public StreamUser,
      public std::enable_shared_from_this<SimulatedTransport> {
 public:
  SimulatedTransport(Stage* stage, Coordinator* coordinator, int node,
                     proto::ExecutorHello hello, int64_t connect_timeout,
                     worker::TransportCallbacks callbacks);

  void Start();
  uint64_t Send(proto::ExecutorMessage message);
  void TakeRelayed(const std::string& incarnation,
                   proto::CoordinatorMessage message);
  // Ends the session.
  void Close();
  // The process dies.
  void Die();
  const std::string& incarnation() const { return session_.incarnation(); }

  void OnStreamMessage(const proto::CoordinatorMessage& message) override;
  void OnStreamEnded(const absl::Status& status) override;

 private:
  void Open();
  void Acknowledge();
  void Welcomed(const proto::CoordinatorMessage& first);
  void Acknowledged(uint64_t sequence);
  void Again(const absl::Status& last);
  // The executor of an agent that was killed may be about to end.
  bool MayPass(const absl::Status& refusal) const;
  void Lose(const absl::Status& status);

  Stage* const stage_;
  Coordinator* const coordinator_;
  const int node_;
  const int64_t connect_timeout_;
  const worker::TransportCallbacks callbacks_;
  worker::CoordinatorSession session_;
  std::shared_ptr<Stream> stream_;
  bool up_ = false;
  bool over_ = false;
  bool ack_planned_ = false;
  uint64_t acknowledged_ = 0;
  int64_t deadline_ = 0;
  int64_t pause_ = 0;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_TRANSPORT_H_
