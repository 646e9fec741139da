#include "tests/simulation/parts/network.h"

#include <utility>

namespace maypole::simulation {
namespace {

// The longest sleep of a network thread.
constexpr int64_t kNetworkSleep = 100 * kMillisecond;

}  // namespace

SimulatedNetwork::SimulatedNetwork(Fabric* fabric, std::string name,
                                   Callbacks callbacks,
                                   std::function<void()> on_gone,
                                   std::function<void()> on_message)
    : stage_(fabric->stage()),
      name_(std::move(name)),
      callbacks_(std::move(callbacks)),
      on_gone_(std::move(on_gone)),
      on_message_(std::move(on_message)),
      backend_(std::make_unique<SimulatedBackend>(fabric, name_)),
      turn_(&stage_->scheduler, [this] { TakeTurn(); }) {
  backend_->OnMessage([this](uint32_t node, const proto::PeerMessage& message) {
    messages_.emplace_back(node, message);
    on_message_();
  });
}

SimulatedNetwork::~SimulatedNetwork() {
  life_.reset();
  backend_->Abort();
  // The backend calls the runner; the runner does not need it any more.
  backend_.reset();
  on_gone_();
}

void SimulatedNetwork::Prepare(uint32_t node_index, uint32_t nodes) {
  const auto addresses = backend_->Prepare(node_index, nodes);
  stage_->scheduler.After(stage_->SoonDelay(), life_, [this, addresses] {
    callbacks_.on_prepared(addresses);
  });
}

void SimulatedNetwork::Connect(std::vector<std::string> addresses) {
  backend_->StartConnecting(addresses, callbacks_.on_connected);
}

void SimulatedNetwork::Start(const Board* board) {
  board_ = board;
  runner_ = std::make_unique<worker::NetworkRunner>(board, backend_.get(),
                                                    callbacks_.runner);
  turn_.Ask(stage_->SoonDelay(), life_);
  if (!messages_.empty()) on_message_();
}

void SimulatedNetwork::Add(worker::RunSpec run) {
  runner_->Add(std::move(run));
}

void SimulatedNetwork::SendToPeers(const std::vector<uint32_t>& nodes,
                                   const proto::PeerMessage& message) {
  for (const uint32_t node : nodes) backend_->SendMessage(node, message);
}

void SimulatedNetwork::Abort() {
  over_ = true;
  backend_->Abort();
}

void SimulatedNetwork::TakeTurn() {
  const bool slept = std::exchange(asleep_, false);
  if (over_ || board_->aborted()) return;
  BoardHeader& h = board_->header();
  const bool by_itself = slept && h.network_wake.load() == seen_;
  h.network_sleeping.store(0);
  const uint32_t seen = h.network_wake.load();
  const absl::StatusOr<bool> moved = runner_->Step();
  if (!moved.ok()) {
    over_ = true;
    return callbacks_.on_failed(moved.status());
  }
  if (*moved) {
    if (by_itself && !stage_->SomebodyOwesAWake()) {
      stage_->Found(name_, ": the network thread was not woken");
    }
    return turn_.Ask(stage_->SoonDelay(), life_);
  }
  // LookAtWakeWord() stands for the second look of the real thread.
  h.network_sleeping.store(1);
  asleep_ = true;
  seen_ = seen;
  turn_.Ask(kNetworkSleep, life_);
  LookAtWakeWord();
}

void SimulatedNetwork::LookAtWakeWord() {
  if (!asleep_ || board_->header().network_wake.load() == seen_) return;
  turn_.Ask(stage_->SoonDelay(), life_);
}

bool SimulatedNetwork::Fail() {
  if (!backend_->connected()) return false;
  backend_->Fail(absl::UnavailableError("connection reset by the peer"), true);
  return true;
}

}  // namespace maypole::simulation
