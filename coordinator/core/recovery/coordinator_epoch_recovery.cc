// CoordinatorEpoch: an epoch that another coordinator has begun. All that it
// has decided for several nodes reaches all of them; what is open, the nodes
// report again.
#include <algorithm>
#include <map>
#include <utility>

#include "coordinator/core/coordinator_epoch.h"
#include "coordinator/core/recovery/recovery.h"

namespace maypole::coordinator {
void CoordinatorEpoch::Restore(
    const std::vector<const proto::NodeState*>& states,
    const std::set<uint32_t>& left, uint64_t last_decision, JobOutput* out) {
  decision_ = last_decision;
  std::map<uint64_t, const proto::Decision*> decisions;
  const proto::NodeState* newest = nullptr;  // knows all process sets
  uint32_t joins = 0;
  bool connected = true;
  for (size_t i = 0; i < states.size(); ++i) {
    connected_[i] = states[i] != nullptr;
    if (!connected_[i]) continue;
    const proto::NodeState& state = *states[i];
    for (const proto::Decision& d : state.decisions()) {
      decisions.emplace(NumberOf(d), &d);
    }
    // Nodes learn of sets in one order.
    const auto known = [](const proto::NodeState& s) {
      return std::pair(s.sets_answered(), s.sets_size());
    };
    if (newest == nullptr || known(*newest) < known(state)) newest = &state;
    joins = std::max(joins, state.joins_answered());
    connected = connected && state.connected();
    node_runs_[i] = state.last_run();
    if (state.schedule() > schedule_) {
      schedule_ = state.schedule();
      schedule_runs_ = state.schedule_length();
      schedule_fan_out_ = state.schedule_fan_out();
    }
  }
  if (newest != nullptr) sets_.Restore(*newest);
  joins_.Restore(joins);
  RestoreLeft(left);
  RestoreSchedule(states);
  timeline_.Restore(states);
  communicators_.Restore(states, sets_);
  for (size_t i = 0; i < states.size(); ++i) {
    if (!connected_[i]) continue;
    if (!states[i]->has_start()) SendStart(i, out);
    SendCommunicators(i, states, out);
    for (const auto& [number, decision] : decisions) {
      if (number <= states[i]->last_decision()) continue;
      Reissue(i, *decision, out);
    }
    if (!left.empty()) SendLeft(i, left_, LeftMessage(left_), out);
    if (follows_[i] && states[i]->schedule() < schedule_) SendRefusal(i, out);
    proto::CoordinatorMessage message;
    message.mutable_recovered()->set_epoch(number_);
    message.mutable_recovered()->set_endpoints(!connected);
    message.mutable_recovered()->set_takes_as_before(true);
    message.mutable_recovered()->set_sends_inputs(SendsInputs());
    ToNode(i, std::move(message), out);
  }
  TimelineRelay::Messages messages;
  timeline_.TellAll(&messages);
  SendTimeline(std::move(messages), out);
}

void CoordinatorEpoch::SendCommunicators(
    size_t node, const std::vector<const proto::NodeState*>& states,
    JobOutput* out) {
  std::set<uint32_t> told, connected;
  for (const auto& c : states[node]->communicators()) told.insert(c.number());
  for (const uint32_t c : states[node]->ids_received()) connected.insert(c);
  std::map<uint32_t, const proto::CommunicatorId*> ids;
  for (const proto::NodeState* state : states) {
    if (state == nullptr) continue;
    for (const auto& id : state->communicator_ids()) ids[id.number()] = &id;
  }
  for (const Communicator& c : communicators_.all()) {
    for (const Communicator::Part& part : c.parts) {
      if (part.node != node) continue;
      if (!told.contains(c.number)) SendCommunicator(c, part, out);
      const auto id = ids.find(c.number);
      if (id == ids.end()) continue;
      communicators_.Get(c.number)->has_id = true;
      if (connected.contains(c.number)) continue;
      proto::CoordinatorMessage message;
      *message.mutable_communicator_id() = *id->second;
      ToNode(node, std::move(message), out);
    }
  }
}

void CoordinatorEpoch::RestoreLeft(const std::set<uint32_t>& left) {
  ProcessSets::Replies sets;
  Joins::Replies joins;
  for (const uint32_t rank : left) {
    left_.push_back(rank);
    has_left_[rank] = true;
    sets_.OnRankLeft(rank, WhoText(rank), &sets);
    joins_.OnRankLeft(WhoText(rank), &joins);
  }
}

// A node that has not got the schedule takes no part in it, and those that have
// got it must learn that from the node itself.
void CoordinatorEpoch::RestoreSchedule(
    const std::vector<const proto::NodeState*>& states) {
  bool followed = false;
  for (size_t i = 0; i < states.size(); ++i) {
    follows_[i] = connected_[i] && states[i]->follows() &&
                  states[i]->schedule() == schedule_;
    followed = followed || follows_[i];
  }
  if (!followed) return;
  for (size_t i = 0; i < states.size(); ++i) {
    if (connected_[i] && states[i]->schedule() < schedule_) follows_[i] = true;
  }
}

void CoordinatorEpoch::SendRefusal(size_t node, JobOutput* out) {
  proto::CoordinatorMessage message;
  message.mutable_schedule()->set_epoch(number_);
  message.mutable_schedule()->set_number(schedule_);
  message.mutable_schedule()->set_length(static_cast<uint32_t>(schedule_runs_));
  message.mutable_schedule()->set_fan_out(schedule_fan_out_);
  message.mutable_schedule()->set_refuse(true);
  ToNode(node, std::move(message), out);
}

void CoordinatorEpoch::Reissue(size_t node, const proto::Decision& decision,
                               JobOutput* out) {
  const auto concerns = [&](uint32_t process_set) {
    const RankSet* set = sets_.FindEver(process_set);
    return set != nullptr && !set->by_node[node].empty();
  };
  proto::CoordinatorMessage message;
  switch (decision.what_case()) {
    case proto::Decision::kRun: {
      if (!concerns(decision.run().process_set())) return;
      message.mutable_execute()->set_epoch(number_);
      proto::Run* run = message.mutable_execute()->add_runs();
      *run = decision.run();
      run->set_run(++node_runs_[node]);
      break;
    }
    case proto::Decision::kOperationFailed:
      // A node that has not reported the operation ignores it.
      if (!concerns(decision.operation_failed().identity().process_set())) {
        return;
      }
      *message.mutable_operation_failed() = decision.operation_failed();
      break;
    case proto::Decision::kSetReply:
      *message.mutable_set_reply() = decision.set_reply();
      break;
    default:
      *message.mutable_join_reply() = decision.join_reply();
      break;
  }
  ToNode(node, std::move(message), out);
}

}  // namespace maypole::coordinator
