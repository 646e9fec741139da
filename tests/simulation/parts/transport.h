// SimulatedTransport: an executor's session with the coordinator.
//
// Purpose: does on simulated streams what worker/network/grpc_transport.h does
// with threads and gRPC: the same common/wire/link.h, the same rules for
// reconnecting, resuming and giving up.
//
// Thread contract: not synchronized. Callbacks come from events of their own.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_TRANSPORT_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_TRANSPORT_H_

#include <memory>
#include <string>

#include "common/wire/link.h"
#include "tests/simulation/parts/coordinator.h"
#include "worker/core/limits.h"
#include "worker/network/transport.h"

namespace maypole::simulation {

class SimulatedTransport
    : public StreamUser,
      public std::enable_shared_from_this<SimulatedTransport> {
 public:
  SimulatedTransport(Stage* stage, Coordinator* coordinator, int node,
                     proto::ExecutorHello hello, int64_t resume_timeout,
                     worker::TransportCallbacks callbacks);

  void Start();
  uint64_t Send(proto::ExecutorMessage message);
  // Ends the session.
  void Close();
  // The process dies.
  void Die();
  const std::string& incarnation() const { return incarnation_; }

  void OnStreamMessage(const proto::CoordinatorMessage& message) override;
  void OnStreamEnded(const absl::Status& status) override;

 private:
  void Open();
  void Welcomed(const proto::CoordinatorMessage& first);
  void Acknowledged(uint64_t sequence);
  void Again(const absl::Status& last);
  void Lose(const absl::Status& status);
  absl::Status LostStatus(const absl::Status& last) const;

  Stage* const stage_;
  Coordinator* const coordinator_;
  const int node_;
  const proto::ExecutorHello hello_;
  const int64_t resume_timeout_;
  const worker::TransportCallbacks callbacks_;
  Link<proto::ExecutorMessage> link_{worker::kMaxUnacknowledged};
  std::shared_ptr<Stream> stream_;
  bool up_ = false;
  bool over_ = false;
  std::string session_;
  std::string incarnation_;
  uint64_t acknowledged_ = 0;
  int64_t deadline_ = 0;
  int64_t pause_ = 0;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_TRANSPORT_H_
