#include "worker/core/operations/schedule.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "worker/core/limits.h"
#include "worker/core/node_tree.h"

namespace maypole::worker {

Schedule::Schedule(uint32_t self, uint32_t nodes)
    : self_(self), everyone_(nodes), peers_(nodes) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
}

void Schedule::Begin(uint64_t number, uint32_t length, uint32_t fan_out,
                     std::vector<ScheduledRun> runs, int64_t now_ms) {
  active_ = true;
  number_ = number;
  length_ = length;
  fan_out_ = fan_out;
  FindNeighbours();
  runs_ = std::move(runs);
  run_of_.clear();
  for (uint32_t i = 0; i < runs_.size(); ++i) {
    for (const uint32_t slot : runs_[i].slots) run_of_[slot] = i;
  }
  next_turn_ = executed_ = 0;
  present_.assign(runs_.size(), 0);
  copied_.assign(runs_.size(), 0);
  now_ms_ = now_ms;
  refused_ = told_refusal_ = false;
  told_ready_ = 0;
  text_.clear();
  for (const Peer& peer : peers_) {
    if (peer.number == number_) FollowRefusal(peer);
  }
}

void Schedule::FindNeighbours() {
  children_.clear();
  above_.clear();
  if (fan_out_ == 0) return;
  const NodeTree tree(self_, static_cast<uint32_t>(peers_.size()), fan_out_);
  children_ = tree.children;
  above_ = tree.parent ? std::vector<uint32_t>{*tree.parent} : children_;
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

Schedule::Position Schedule::NextPosition() const {
  return runs_.empty() ? 0 : PositionOf(next_turn_);
}

const Schedule::Peer* Schedule::SaidBy(uint32_t node) const {
  return peers_[node].number == number_ ? &peers_[node] : nullptr;
}

void Schedule::GoOn() {
  while (!refused_ && !runs_.empty()) {
    const size_t run = next_turn_ % runs_.size();
    if (present_[run] < runs_[run].slots.size()) break;
    const bool sends = runs_[run].small && copied_[run] == present_[run];
    present_[run] = copied_[run] = 0;
    if (fan_out_ == 0) {
      proto::PeerMessage message;
      message.set_ready(PositionOf(next_turn_));
      Tell(runs_[run].nodes, std::move(message),
           sends ? runs_[run].slots : std::vector<uint32_t>());
    }
    waiting_.push_back({next_turn_++, sends});
  }
  TellAbove();
}

void Schedule::TellAbove() {
  if (fan_out_ == 0) return;
  // All of them are ready for the positions below this one.
  Position ready = NextPosition();
  Position from = ready;
  bool all_refused = refused_;
  for (const uint32_t child : children_) {
    const Peer* said = SaidBy(child);
    const bool is_ready = said != nullptr && said->ready;
    ready = std::min(ready, is_ready ? *said->ready + 1 : 0);
    all_refused = all_refused && said != nullptr && said->refusal;
    if (all_refused) from = std::min(from, said->refusal->from());
  }
  if (ready > told_ready_) {
    told_ready_ = ready;
    proto::PeerMessage message;
    message.set_ready(ready - 1);
    Tell(above_, std::move(message));
  }
  if (!all_refused || std::exchange(told_refusal_, true)) return;
  Tell(above_, RefusalFrom(from));
}

proto::PeerMessage Schedule::RefusalFrom(Position from) const {
  proto::PeerMessage message;
  message.mutable_refusal()->set_from(from);
  message.mutable_refusal()->set_why(why_);
  message.mutable_refusal()->set_text(text_);
  return message;
}

void Schedule::Refuse(proto::ScheduleEnd why, const std::string& text) {
  if (!active_ || refused_) return;
  refused_ = true;
  why_ = why;
  text_ = text;
  if (fan_out_ == 0) return Tell(everyone_, RefusalFrom(NextPosition()));
  proto::PeerMessage message;
  message.mutable_leaving()->set_why(why);
  message.mutable_leaving()->set_text(text);
  Tell(above_, message);
  if (self_ != 0) Tell(children_, message);
  TellAbove();
}

void Schedule::FollowRefusal(const Peer& peer) {
  if (peer.refusal) Refuse(peer.refusal->why(), peer.refusal->text());
  if (peer.leaving) Refuse(peer.leaving->why(), peer.leaving->text());
}

void Schedule::Tell(const std::vector<uint32_t>& nodes,
                    proto::PeerMessage message,
                    std::vector<uint32_t> inputs_of) {
  message.set_schedule(number_);
  std::vector<uint32_t> to;
  std::copy_if(nodes.begin(), nodes.end(), std::back_inserter(to),
               [this](uint32_t node) { return node != self_; });
  if (to.empty()) return;
  messages_.push_back(
      {std::move(to), std::move(message), std::move(inputs_of)});
}

void Schedule::OnPeer(uint32_t node, const proto::PeerMessage& message) {
  Peer& peer = peers_[node];
  if (message.schedule() < peer.number) return;
  if (message.schedule() > peer.number) peer = {.number = message.schedule()};
  if (message.has_ready()) {
    peer.ready = message.ready();
    if (message.has_inputs()) peer.inputs[message.ready()] = message.inputs();
  }
  if (message.has_refusal()) peer.refusal = message.refusal();
  if (message.has_leaving()) peer.leaving = message.leaving();
  if (peer.number != number_) return;
  FollowRefusal(peer);
  if (fan_out_ == 0 || !active_) return;
  const bool is_parent = self_ != 0 && node == above_.front();
  if (is_parent && !message.has_leaving()) Tell(children_, message);
  TellAbove();
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
  for (const uint32_t node : DecidersOf(RunOf(turn))) {
    if (node == self_) continue;
    const Peer* said = SaidBy(node);
    if (said != nullptr && said->ready && *said->ready >= position) continue;
    if (said != nullptr && said->refusal && said->refusal->from() <= position) {
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
  for (const uint32_t node : fan_out_ == 0 ? everyone_ : above_) {
    if (node == self_) continue;
    const Peer* said = SaidBy(node);
    if (said == nullptr || !said->refusal) return false;
  }
  return true;
}

std::set<uint32_t> Schedule::End() {
  active_ = false;
  urgent_.clear();
  return std::exchange(added_, {});
}

}  // namespace maypole::worker
