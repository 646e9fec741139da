// SimulatedBackend: chunks between nodes, without sockets.
//
// Purpose: keeps the promises of worker/backend/backend.h: chunks end in the
// order of their starts, at different times on different nodes; after a node is
// lost or has aborted, the others' chunks on their way fail some time later. It
// also checks its users: all nodes must start the same chunks in the same
// order.
//
// Thread contract: not synchronized. Events call the callbacks of ended chunks.
#ifndef MAYPOLE_TESTS_SIMULATION_PARTS_BACKEND_H_
#define MAYPOLE_TESTS_SIMULATION_PARTS_BACKEND_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/coordinator.pb.h"
#include "tests/simulation/stage.h"
#include "worker/backend/backend.h"

namespace maypole::simulation {

class SimulatedBackend;

// Connects the backends of all epochs and nodes.
class Fabric {
 public:
  explicit Fabric(Stage* stage) : stage_(stage) {}

  Stage* stage() const { return stage_; }
  uint64_t Add(SimulatedBackend* backend);
  void Remove(uint64_t id) { backends_.erase(id); }
  SimulatedBackend* Find(uint64_t id) const;

 private:
  Stage* const stage_;
  uint64_t last_ = 0;
  std::map<uint64_t, SimulatedBackend*> backends_;
};

class SimulatedBackend : public worker::Backend {
 public:
  // name: of the node, for messages.
  SimulatedBackend(Fabric* fabric, std::string name);
  ~SimulatedBackend() override;

  absl::StatusOr<std::vector<std::string>> Prepare(uint32_t node_index,
                                                   uint32_t nodes) override;
  // Not used: connecting takes time. on_connected is called from an event.
  absl::Status Connect(const std::vector<std::string>&) override;
  void StartConnecting(const std::vector<std::string>& addresses,
                       std::function<void(const absl::Status&)> on_connected);
  // Not used: messages go through SendMessage().
  std::vector<worker::PeerStream> TakeMessageConnections() override {
    return {};
  }
  void SendMessage(uint32_t node, const proto::PeerMessage& message);
  void OnMessage(
      std::function<void(uint32_t node, const proto::PeerMessage&)> f) {
    on_message_ = std::move(f);
  }
  void OnEnded(std::function<void(const absl::Status&)> on_ended) override;
  void Start(worker::Work work) override;
  void Abort() override;
  absl::Status status() const override { return failure_; }
  uint64_t bytes_sent() const override { return 0; }
  uint64_t bytes_received() const override { return 0; }

  // Fault: its connections break.
  void Fail(const absl::Status& status, bool tell_peers);
  bool connected() const { return connected_; }

 private:
  struct Flight {
    worker::Work work;
    bool carried_out = false;
    int64_t ends = 0;  // when, if carried_out
  };

  void TryConnect();
  void Connected(const absl::Status& status);
  void TellPeers(const absl::Status& status);
  std::vector<SimulatedBackend*> Nodes();
  std::vector<uint32_t> Participants(const worker::Work& work) const;
  Flight* Next();  // the first that has not been executed
  void TryReduce();
  void Reduce(const std::vector<SimulatedBackend*>& nodes);
  static bool Fits(const worker::Work& a, const worker::Work& b);
  static void Reduce(Stage* stage, const std::vector<uint32_t>& who,
                     const std::vector<worker::Work*>& work);
  static void Gather(Stage* stage, const std::vector<uint32_t>& who,
                     const std::vector<worker::Work*>& work);
  void AskForEnd();
  void EndDue();

  Fabric* const fabric_;
  Stage* const stage_;
  const std::string name_;
  const uint64_t id_;
  const std::shared_ptr<int> life_ = std::make_shared<int>();
  uint32_t index_ = 0;
  std::vector<uint64_t> nodes_;  // ids by node index; own included
  bool connecting_ = false;
  bool connected_ = false;
  std::function<void(const absl::Status&)> on_connected_;
  std::function<void(const absl::Status&)> on_ended_;
  std::function<void(uint32_t, const proto::PeerMessage&)> on_message_;
  std::vector<int64_t> last_arrival_;  // by node, of what was sent to it
  absl::Status failure_;
  std::deque<Flight> flights_;
  int64_t last_end_ = 0;
  Turn turn_;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_PARTS_BACKEND_H_
