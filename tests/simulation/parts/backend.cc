#include "tests/simulation/parts/backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace maypole::simulation {
namespace {

constexpr int64_t kConnectTimeout = 10 * kSecond;

}  // namespace

uint64_t Fabric::Add(SimulatedBackend* backend) {
  backends_[++last_] = backend;
  return last_;
}

SimulatedBackend* Fabric::Find(uint64_t id) const {
  const auto it = backends_.find(id);
  return it == backends_.end() ? nullptr : it->second;
}

SimulatedBackend::SimulatedBackend(Fabric* fabric, std::string name)
    : fabric_(fabric),
      stage_(fabric->stage()),
      name_(std::move(name)),
      id_(fabric->Add(this)),
      turn_(&stage_->scheduler, [this] { EndDue(); }) {}

SimulatedBackend::~SimulatedBackend() {
  fabric_->Remove(id_);
  TellPeers(absl::UnavailableError(
      absl::StrCat(name_, " has closed the connection")));
}

// --- Connecting --------------------------------------------------------------

absl::StatusOr<std::vector<std::string>> SimulatedBackend::Prepare(
    uint32_t node_index, uint32_t nodes) {
  index_ = node_index;
  std::vector<std::string> addresses(nodes, absl::StrCat(id_));
  addresses[node_index].clear();
  return addresses;
}

absl::Status SimulatedBackend::Connect(const std::vector<std::string>&) {
  return absl::InternalError("the simulation connects by StartConnecting");
}

void SimulatedBackend::StartConnecting(
    const std::vector<std::string>& addresses,
    std::function<void(const absl::Status&)> on_connected) {
  on_connected_ = std::move(on_connected);
  for (uint32_t i = 0; i < addresses.size(); ++i) {
    uint64_t id = id_;
    if (i != index_ && !absl::SimpleAtoi(addresses[i], &id)) {
      stage_->Found(name_, " was given a bad address of node ", i, ": '",
                    addresses[i], "'");
    }
    nodes_.push_back(id);
  }
  connecting_ = true;
  stage_->scheduler.After(kConnectTimeout, life_, [this] {
    if (connecting_) {
      Connected(absl::DeadlineExceededError(
          absl::StrCat(name_, " could not connect to its peers")));
    }
  });
  for (SimulatedBackend* node : Nodes()) node->TryConnect();
}

std::vector<SimulatedBackend*> SimulatedBackend::Nodes() {
  std::vector<SimulatedBackend*> out;
  for (const uint64_t id : nodes_) {
    if (SimulatedBackend* node = fabric_->Find(id)) out.push_back(node);
  }
  return out;
}

void SimulatedBackend::TryConnect() {
  if (!connecting_) return;
  const std::vector<SimulatedBackend*> nodes = Nodes();
  if (nodes.size() < nodes_.size()) {
    return Connected(absl::UnavailableError(
        absl::StrCat(name_, ": connection refused by a peer")));
  }
  for (const SimulatedBackend* node : nodes) {
    if (!node->connecting_ && !node->connected_) return;
  }
  Connected(absl::OkStatus());
}

void SimulatedBackend::Connected(const absl::Status& status) {
  connecting_ = false;
  connected_ = status.ok();
  failure_.Update(status);
  stage_->scheduler.After(stage_->MessageDelay(), life_,
                          [this, status] { on_connected_(status); });
}

// --- Failing -----------------------------------------------------------------

void SimulatedBackend::TellPeers(const absl::Status& status) {
  for (const uint64_t id : nodes_) {
    if (id == id_) continue;
    stage_->scheduler.After(stage_->MessageDelay(), stage_->Forever(),
                            [fabric = fabric_, id, status] {
                              if (SimulatedBackend* peer = fabric->Find(id)) {
                                peer->Fail(status, false);
                              }
                            });
  }
}

void SimulatedBackend::Fail(const absl::Status& status, bool tell_peers) {
  if (!failure_.ok()) return;
  failure_ = status;
  if (tell_peers) TellPeers(status);
  if (connecting_) Connected(status);
  connected_ = false;
  AskForEnd();
}

void SimulatedBackend::Abort() {
  Fail(absl::AbortedError("the epoch is over"), false);
  TellPeers(absl::UnavailableError(
      absl::StrCat(name_, " has closed the connection")));
}

// --- Messages ----------------------------------------------------------------

void SimulatedBackend::SendMessage(uint32_t node,
                                   const proto::PeerMessage& message) {
  if (!failure_.ok()) return;
  last_arrival_.resize(nodes_.size(), 0);
  int64_t& last = last_arrival_[node];
  last = std::max(last, stage_->scheduler.now() + stage_->MessageDelay());
  stage_->scheduler.After(
      last - stage_->scheduler.now(), stage_->Forever(),
      [fabric = fabric_, to = nodes_[node], from = index_, message] {
        SimulatedBackend* peer = fabric->Find(to);
        if (peer == nullptr || !peer->failure_.ok()) return;
        if (peer->on_message_) peer->on_message_(from, message);
      });
}

// --- Chunks ------------------------------------------------------------------

void SimulatedBackend::OnEnded(
    std::function<void(const absl::Status&)> on_ended) {
  on_ended_ = std::move(on_ended);
}

void SimulatedBackend::Start(worker::Work work) {
  flights_.push_back({std::move(work)});
  if (!failure_.ok()) return AskForEnd();
  TryReduce();
}

SimulatedBackend::Flight* SimulatedBackend::Next() {
  for (Flight& f : flights_) {
    if (!f.carried_out) return &f;
  }
  return nullptr;
}

std::vector<uint32_t> SimulatedBackend::Participants(
    const worker::Work& work) const {
  if (!work.nodes.empty()) return work.nodes;
  std::vector<uint32_t> all(nodes_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool SimulatedBackend::Fits(const worker::Work& a, const worker::Work& b) {
  return a.chunk.size() == b.chunk.size() && a.reduces == b.reduces &&
         a.scatters == b.scatters && a.op == b.op && a.dtype == b.dtype;
}

void SimulatedBackend::TryReduce() {
  for (;;) {
    const Flight* mine = Next();
    if (mine == nullptr) return;
    const std::vector<uint32_t> who = Participants(mine->work);
    std::vector<SimulatedBackend*> nodes;
    for (const uint32_t i : who) {
      SimulatedBackend* node = fabric_->Find(nodes_[i]);
      if (node == nullptr || !node->failure_.ok()) return;
      const Flight* theirs = node->Next();
      if (theirs == nullptr || node->Participants(theirs->work) != who) return;
      if (!Fits(mine->work, theirs->work)) {
        stage_->Found(name_, " and ", node->name_,
                      " start different chunks: ", mine->work.chunk.size(),
                      " and ", theirs->work.chunk.size(), " bytes");
        return;
      }
      nodes.push_back(node);
    }
    Reduce(nodes);
    // It may have been before others that do not concern this node.
    for (SimulatedBackend* node : nodes) {
      if (node != this) node->TryReduce();
    }
  }
}

void SimulatedBackend::Reduce(const std::vector<SimulatedBackend*>& nodes) {
  std::vector<worker::Work*> work;
  std::vector<uint32_t> who;
  for (SimulatedBackend* node : nodes) {
    work.push_back(&node->Next()->work);
    who.push_back(node->index_);
  }
  if (work.front()->reduces) {
    Reduce(stage_, who, work);
  } else {
    Gather(stage_, who, work);
  }
  for (SimulatedBackend* node : nodes) {
    Flight* flight = node->Next();
    flight->carried_out = true;
    node->last_end_ = std::max(
        node->last_end_, stage_->scheduler.now() + stage_->MessageDelay());
    if (stage_->Spoils(Sabotage::kForgetChunk, 256)) {
      node->last_end_ = INT64_MAX;
    }
    flight->ends = node->last_end_;
    node->AskForEnd();
  }
}

void SimulatedBackend::Reduce(Stage* stage, const std::vector<uint32_t>& who,
                              const std::vector<worker::Work*>& work) {
  const size_t size = SizeOf(work.front()->dtype);
  const size_t bytes = work.front()->chunk.size();
  std::vector<const std::byte*> inputs;
  for (const worker::Work* w : work) inputs.push_back(w->chunk.data());
  if (stage->Spoils(Sabotage::kWrongSum, 8)) inputs.pop_back();
  std::vector<std::byte> sum(bytes);
  maypole::Reduce(work.front()->dtype, work.front()->op, inputs, sum.data(),
                  bytes / size, work.front()->finish);
  for (size_t i = 0; i < work.size(); ++i) {
    std::byte* to = work[i]->chunk.data();
    if (!work[i]->scatters) {
      std::memcpy(to, sum.data(), bytes);
      continue;
    }
    std::memset(to, 0xcd, bytes);  // no part may rely on the rest
    for (const worker::Segment& s : work[i]->segments) {
      if (s.to != who[i] && s.to != worker::kEveryNode) continue;
      std::memcpy(to + s.offset, sum.data() + s.offset, s.bytes);
    }
  }
}

// Every node takes the bytes that it expects; their sender must intend to send
// exactly these.
void SimulatedBackend::Gather(Stage* stage, const std::vector<uint32_t>& who,
                              const std::vector<worker::Work*>& work) {
  for (size_t i = 0; i < work.size(); ++i) {
    for (const worker::Segment& s : work[i]->segments) {
      if (s.from == who[i] || (s.to != who[i] && s.to != worker::kEveryNode)) {
        continue;
      }
      const auto sender = static_cast<size_t>(
          std::find(who.begin(), who.end(), s.from) - who.begin());
      if (sender == who.size() || std::find(work[sender]->segments.begin(),
                                            work[sender]->segments.end(), s) ==
                                      work[sender]->segments.end()) {
        stage->Found("node ", who[i], " expects ", s.bytes, " bytes of node ",
                     s.from, ", which sends others");
        return;
      }
      std::memcpy(work[i]->chunk.data() + s.offset,
                  work[sender]->chunk.data() + s.offset, s.bytes);
    }
  }
}

void SimulatedBackend::AskForEnd() {
  if (flights_.empty()) return;
  int64_t delay = stage_->SoonDelay();
  if (failure_.ok()) {
    if (!flights_.front().carried_out) return;
    if (flights_.front().ends == INT64_MAX) return;
    delay =
        std::max<int64_t>(0, flights_.front().ends - stage_->scheduler.now());
  }
  turn_.Ask(delay, life_);
}

// One chunk ends.
void SimulatedBackend::EndDue() {
  if (flights_.empty()) return;
  const bool over = flights_.front().carried_out &&
                    flights_.front().ends <= stage_->scheduler.now();
  if (!over && failure_.ok()) return AskForEnd();
  const absl::Status status = failure_.ok() ? absl::OkStatus() : failure_;
  if (stage_->Spoils(Sabotage::kLateWrite, 8)) {
    stage_->scheduler.After(stage_->SoonDelay(), life_,
                            [chunk = flights_.front().work.chunk] {
                              std::memset(chunk.data(), 0xef, chunk.size());
                            });
  }
  flights_.pop_front();
  on_ended_(status);
  AskForEnd();
}

}  // namespace maypole::simulation
