#include "worker/core/operations/schedule.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "worker/core/limits.h"

namespace maypole::worker {

void Schedule::Begin(uint64_t number, uint32_t length,
                     std::vector<ScheduledRun> runs, int64_t now_ms) {
  active_ = true;
  number_ = number;
  length_ = length;
  runs_ = std::move(runs);
  run_of_.clear();
  for (uint32_t i = 0; i < runs_.size(); ++i) {
    for (const uint32_t slot : runs_[i].slots) run_of_[slot] = i;
  }
  next_turn_ = executed_ = 0;
  present_.assign(runs_.size(), 0);
  copied_.assign(runs_.size(), 0);
  now_ms_ = now_ms;
  refused_ = false;
  text_.clear();
  for (const Peer& peer : peers_) {
    if (peer.number == number_ && peer.refusal) {
      Refuse(peer.refusal->why(), peer.refusal->text());
    }
  }
}

Schedule::Position Schedule::PositionOf(uint64_t turn) const {
  return turn / runs_.size() * length_ + RunOf(turn).index;
}

void Schedule::Add(uint32_t slot, bool urgent, bool copied) {
  added_.insert(slot);
  const uint32_t run = run_of_.at(slot);
  ++present_[run];
  copied_[run] += copied ? 1 : 0;
  if (urgent) Urge(slot);
  GoOn();
}

void Schedule::Urge(uint32_t slot) {
  if (urgent_.empty()) late_ms_ = now_ms_ + kScheduleLateMs;
  if (added_.contains(slot)) urgent_.insert(slot);
}

void Schedule::GoOn() {
  while (!refused_ && !runs_.empty()) {
    const size_t run = next_turn_ % runs_.size();
    if (present_[run] < runs_[run].slots.size()) return;
    const bool sends = runs_[run].small && copied_[run] == present_[run];
    present_[run] = copied_[run] = 0;
    proto::PeerMessage message;
    message.set_ready(PositionOf(next_turn_));
    Tell(runs_[run].nodes, std::move(message));
    if (sends) messages_.back().inputs_of = runs_[run].slots;
    waiting_.push_back({next_turn_++, sends});
  }
}

void Schedule::Refuse(proto::ScheduleEnd why, const std::string& text) {
  if (!active_ || refused_) return;
  refused_ = true;
  why_ = why;
  text_ = text;
  proto::PeerMessage message;
  message.mutable_refusal()->set_from(runs_.empty() ? 0
                                                    : PositionOf(next_turn_));
  message.mutable_refusal()->set_why(why);
  message.mutable_refusal()->set_text(text);
  std::vector<uint32_t> all(peers_.size());
  std::iota(all.begin(), all.end(), 0);
  Tell(all, std::move(message));
}

void Schedule::Tell(const std::vector<uint32_t>& nodes,
                    proto::PeerMessage message) {
  message.set_schedule(number_);
  std::vector<uint32_t> to;
  std::copy_if(nodes.begin(), nodes.end(), std::back_inserter(to),
               [this](uint32_t node) { return node != self_; });
  messages_.push_back({std::move(to), std::move(message)});
}

void Schedule::OnPeer(uint32_t node, const proto::PeerMessage& message) {
  Peer& peer = peers_[node];
  if (message.schedule() < peer.number) return;
  if (message.schedule() > peer.number) peer = {.number = message.schedule()};
  if (message.has_ready()) {
    peer.ready = message.ready();
    if (message.has_inputs()) peer.inputs[message.ready()] = message.inputs();
  }
  if (!message.has_refusal()) return;
  peer.refusal = message.refusal();
  if (peer.number == number_) {
    Refuse(peer.refusal->why(), peer.refusal->text());
  }
}

std::optional<uint32_t> Schedule::OnTime(int64_t now_ms) {
  now_ms_ = now_ms;
  if (!active_ || refused_ || urgent_.empty() || now_ms < late_ms_) {
    return std::nullopt;
  }
  return *urgent_.begin();
}

int64_t Schedule::WaitMs() const {
  if (!active_ || refused_ || urgent_.empty()) return -1;
  return std::max<int64_t>(late_ms_ - now_ms_, 0);
}

Schedule::Fate Schedule::FateOf(uint64_t turn) const {
  const Position position = PositionOf(turn);
  Fate fate = Fate::kExecuted;
  for (const uint32_t node : RunOf(turn).nodes) {
    const Peer& peer = peers_[node];
    if (node == self_) continue;
    const bool heard = peer.number == number_;
    if (heard && peer.ready && *peer.ready >= position) continue;
    if (heard && peer.refusal && peer.refusal->from() <= position) {
      return Fate::kDropped;
    }
    fate = Fate::kUndecided;
  }
  return fate;
}

std::vector<Schedule::Execution> Schedule::TakeRuns() {
  std::vector<Execution> out;
  while (!waiting_.empty()) {
    const Waiting run = waiting_.front();
    const Fate fate = FateOf(run.turn);
    if (fate == Fate::kUndecided) break;
    waiting_.pop_front();
    Execution execution = TakeInputs(run);
    if (fate == Fate::kDropped) continue;
    Executed(execution.slots);
    out.push_back(std::move(execution));
  }
  return out;
}

Schedule::Execution Schedule::TakeInputs(const Waiting& run) {
  const ScheduledRun& scheduled = RunOf(run.turn);
  Execution out{scheduled.slots};
  bool all = run.sent_inputs;
  for (const uint32_t node : scheduled.nodes) {
    if (node == self_) {
      out.self = out.inputs.size();
      out.inputs.emplace_back();
      continue;
    }
    auto sent = peers_[node].inputs.extract(PositionOf(run.turn));
    all = all && !sent.empty();
    if (all) out.inputs.push_back(std::move(sent.mapped()));
  }
  if (!all) out.inputs.clear();
  return out;
}

void Schedule::Executed(const std::vector<uint32_t>& slots) {
  ++executed_;
  for (const uint32_t slot : slots) {
    added_.erase(slot);
    urgent_.erase(slot);
  }
  late_ms_ = now_ms_ + kScheduleLateMs;
}

bool Schedule::over() const {
  if (!active_ || !refused_ || !waiting_.empty()) return false;
  for (uint32_t node = 0; node < peers_.size(); ++node) {
    if (node == self_) continue;
    if (peers_[node].number != number_ || !peers_[node].refusal) return false;
  }
  return true;
}

std::set<uint32_t> Schedule::End() {
  active_ = false;
  urgent_.clear();
  return std::exchange(added_, {});
}

}  // namespace maypole::worker
