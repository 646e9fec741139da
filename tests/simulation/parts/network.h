// SimulatedNetwork: does in turns what worker/network/network.h does in a
// thread.
//
// Purpose: runs the real NetworkRunner over a SimulatedBackend. As in reality,
// it gets a turn when the flags on the board wake it, so a missing wake-up is
// found.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_NETWORK_H_
#define MAYPOLE_TESTS_SIMULATION_NETWORK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/parts/backend.h"
#include "tests/simulation/stage.h"
#include "worker/executor/executor_system.h"
#include "worker/network/network_runner.h"

namespace maypole::simulation {

class SimulatedNetwork : public worker::EpochNetwork {
 public:
  // name: of the node, for messages. on_gone: called by the destructor;
  // on_message: when another node's executor has sent something.
  SimulatedNetwork(Fabric* fabric, std::string name, Callbacks callbacks,
                   std::function<void()> on_gone,
                   std::function<void()> on_message);
  ~SimulatedNetwork() override;

  void Prepare(uint32_t node_index, uint32_t nodes) override;
  void Connect(std::vector<std::string> addresses) override;
  void Start(const Board* board) override;
  void Add(worker::RunSpec run) override;
  void Abort() override;
  void SendToPeers(const std::vector<uint32_t>& nodes,
                   const proto::PeerMessage& message) override;
  PeerMessages TakePeerMessages() override {
    return std::exchange(messages_, {});
  }
  // As soon as the network is started.
  bool has_messages() const { return runner_ != nullptr && !messages_.empty(); }
  uint64_t bytes_sent() const override { return 0; }
  uint64_t bytes_received() const override { return 0; }

  // Call after every event on this node: wakes the thread if its word on the
  // board has changed.
  void LookAtWakeWord();
  // Fault: the backend fails. Returns false if it is not connected.
  bool Fail();

 private:
  void TakeTurn();

  Stage* const stage_;
  const std::string name_;
  const Callbacks callbacks_;
  const std::function<void()> on_gone_;
  const std::function<void()> on_message_;
  PeerMessages messages_;
  std::shared_ptr<int> life_ = std::make_shared<int>();
  std::unique_ptr<SimulatedBackend> backend_;
  const Board* board_ = nullptr;
  std::unique_ptr<worker::NetworkRunner> runner_;
  Turn turn_;
  bool asleep_ = false;
  bool over_ = false;
  uint32_t seen_ = 0;  // the wake word's value when it fell asleep
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_NETWORK_H_
