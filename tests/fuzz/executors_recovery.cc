// Coordinated: executors that tell a new coordinator what the previous one
// knew.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "tests/fuzz/executors.h"

namespace maypole::fuzz {
namespace {

constexpr uint64_t kEpoch = 5;
constexpr uint64_t kLastDecision = 3;
constexpr uint32_t kRanksOfNode = 2;
constexpr uint32_t kFaults = 28;  // of Falsify()

// Those that all executors of a job have told: number, and whether with 0.
std::set<std::pair<uint32_t, bool>>& ToldFaults() {
  static std::set<std::pair<uint32_t, bool>> faults;
  return faults;
}

}  // namespace

std::string MissingFaults() {
  std::string missing;
  for (uint32_t fault = 0; fault < kFaults; ++fault) {
    for (const bool zero : {true, false}) {
      if (ToldFaults().contains({fault, zero})) continue;
      missing += " fault " + std::to_string(fault) +
                 (zero ? " with 0" : " with another value");
    }
  }
  return missing;
}

Account Coordinated::MakeAccount() {
  Account account;
  account.schedule = feed_.Below(3);
  account.fault = feed_.Below(kFaults + kFaults / 4);
  account.value = feed_.OnceIn(2) ? 0 : feed_.Number();
  return account;
}

void Coordinated::Recover() {
  for (Player& p : players_) {
    if (p.undisturbed) continue;
    if (p.stream != 0) {
      streams_.erase(p.stream);
      core_.Ended(now_, std::exchange(p.stream, 0),
                  coordinator::StreamEnd::kFinished, carry_);
    }
    Renew(&p);
    p.session = "7";
    p.incarnation = "the one before";
    p.lied = true;
    Open(&p, true);
  }
  const Account account = MakeAccount();
  bool all_tell = account.fault < kFaults;
  for (Player& p : players_) {
    if (p.undisturbed) continue;
    if (p.session.empty() || feed_.OnceIn(16)) {
      all_tell = false;
      continue;
    }
    const proto::ExecutorMessage state = NodeState(&p, account);
    all_tell = all_tell && state.node_state().has_start();
    SayState(&p, state);
  }
  if (all_tell) ToldFaults().insert({account.fault, account.value == 0});
  for (Player& p : players_) {
    if (p.schedule != 0 && feed_.OnceIn(2)) Say(&p, ScheduleEnded(&p), true);
  }
}

void Coordinated::SayState(Player* p, const proto::ExecutorMessage& message) {
  const std::string state = message.node_state().SerializeAsString();
  if (state.empty() || state.size() % 4 != 0) return Say(p, message, true);
  const size_t piece = state.size() / 4;
  for (size_t at = 0; at < state.size(); at += piece) {
    proto::ExecutorMessage m;
    m.mutable_node_state_part()->set_piece(state.substr(at, piece));
    m.mutable_node_state_part()->set_last(at + piece == state.size());
    Say(p, std::move(m), true);
  }
}

proto::ExecutorMessage Coordinated::NodeState(Player* p,
                                              const Account& account) {
  proto::ExecutorMessage m;
  proto::NodeState* state = m.mutable_node_state();
  if (feed_.OnceIn(8)) return m;  // it has been in no epoch
  uint32_t nodes = 0;
  for (const Player& q : players_) nodes += q.job == p->job ? 1 : 0;
  proto::EpochStart* start = state->mutable_start();
  start->set_epoch(kEpoch);
  start->set_size(nodes * kRanksOfNode);
  start->set_node_index(p->index);
  start->set_stall_check_ms(1000);
  start->set_fusion_threshold(4096);
  start->set_chunk_bytes(4096);
  for (uint32_t node = 0; node < nodes; ++node) {
    proto::NodeInfo* info = start->add_nodes();
    info->set_node("n" + std::to_string(node));
    info->set_host("h");
    for (uint32_t i = 0; i < kRanksOfNode; ++i) {
      info->add_ranks(node * kRanksOfNode + i);
      info->add_pids(100 + i);
      if (p->elastic) info->add_clients(i + 1);
    }
  }
  if (p->elastic) {
    start->set_min_size(1);
    start->set_max_size(8);
  }
  state->set_connected(!feed_.OnceIn(8));
  state->set_schedule(account.schedule);
  state->set_schedule_length(account.schedule != 0 ? 1 : 0);
  state->set_follows(account.schedule != 0);
  if (feed_.OnceIn(2)) AddKnown(state);
  Falsify(account, state);
  p->start = *start;
  p->epoch = start->epoch();
  p->over = state->has_end();
  p->schedule = state->follows() ? state->schedule() : 0;
  return m;
}

void Coordinated::AddKnown(proto::NodeState* state) {
  proto::KnownSet* set = state->add_sets();
  set->set_process_set(1);
  set->add_ranks(0);
  set->add_ranks(1);
  set->set_removed(feed_.OnceIn(4));
  state->set_sets_answered(1);
  state->set_last_decision(kLastDecision);
  for (uint64_t number = 1 + feed_.Below(3); number <= kLastDecision;
       ++number) {
    proto::Decision* d = state->add_decisions();
    switch (feed_.Below(4)) {
      case 0: {
        proto::Run* run = d->mutable_run();
        run->set_decision(number);
        run->set_process_set(feed_.Below(3));
        proto::RunOperation* op = run->add_operations();
        op->set_id(1);
        Identity(op->mutable_identity());
        break;
      }
      case 1:
        d->mutable_operation_failed()->set_decision(number);
        d->mutable_operation_failed()->set_code(9);
        Identity(d->mutable_operation_failed()->mutable_identity());
        break;
      case 2:
        d->mutable_set_reply()->set_decision(number);
        d->mutable_set_reply()->set_number(feed_.Below(3));
        break;
      default:
        d->mutable_join_reply()->set_decision(number);
        d->mutable_join_reply()->set_number(feed_.Below(3));
    }
  }
  if (feed_.OnceIn(4)) state->add_left(feed_.Below(2));
  if (feed_.OnceIn(4)) {
    proto::Communicator* c = state->add_communicators();
    c->set_number(1 + feed_.Below(2));
    c->set_ranks_call_nccl(feed_.OnceIn(2));
    c->set_process_set(feed_.Below(3));
    c->add_parts()->set_node(0);
    state->add_communicator_ids()->set_number(1);
    state->mutable_communicator_ids(0)->set_id("i");
    state->add_ids_received(1);
  }
  if (!feed_.OnceIn(8)) return;
  state->mutable_end()->set_code(feed_.Below(3));
  state->mutable_end()->set_message(std::string(feed_.Take(20)));
}

void Coordinated::Falsify(const Account& account, proto::NodeState* state) {
  const uint64_t value = account.value;
  const auto small = static_cast<uint32_t>(value);
  proto::EpochStart* start = state->mutable_start();
  switch (account.fault) {
    case 0:
      return start->set_epoch(value);
    case 1:
      return start->set_size(small);
    case 2:
      return start->set_node_index(small);
    case 3:
      return start->set_stall_check_ms(static_cast<int64_t>(value));
    case 4:
      return start->set_stall_shutdown_ms(static_cast<int64_t>(value));
    case 5:
      return start->set_fusion_threshold(value);
    case 6:
      return start->set_chunk_bytes(small);
    case 7:
      return start->set_min_size(small);
    case 8:
      return start->set_max_size(small);
    case 9:
      return start->mutable_nodes(0)->set_ranks(0, small);
    case 10:
      return start->mutable_nodes(0)->add_clients(value);
    case 11:
      return state->set_last_decision(value);
    case 12:
      return state->set_last_run(value);
    case 13:
      return state->add_left(small);
    case 14:
      return state->set_sets_answered(small);
    case 15:
      return state->set_schedule(value);
    case 16:
      return state->add_communicators()->set_number(small);
    case 17:
      state->set_schedule(1);
      state->set_follows(true);
      return state->set_schedule_length(small);
    case 18:
      state->set_schedule(1);
      state->set_schedule_length(1);
      return state->set_schedule_fan_out(small);
    case 19:
      state->mutable_timeline()->set_number(small);
      return state->mutable_timeline()->set_rank(small);
    case 20:
      state->mutable_timeline()->set_number(1);
      return state->mutable_timeline()->set_node(small);
    case 21:
      return start->set_checksums(small);
    case 22:
      state->add_communicator_ids()->set_id("i");
      return state->mutable_communicator_ids(state->communicator_ids_size() - 1)
          ->set_number(small);
    case 23:
      return state->set_joins_answered(small);
    case 24:
      return state->add_ids_received(small);
    case 25:
      state->add_communicators()->set_number(1);
      return state->mutable_communicators(state->communicators_size() - 1)
          ->add_parts()
          ->set_node(small);
    case 26: {
      proto::OperationFailed* failed =
          state->add_decisions()->mutable_operation_failed();
      failed->set_code(static_cast<int32_t>(small));
      failed->set_decision(kLastDecision + 1);
      return state->set_last_decision(kLastDecision + 1);
    }
    case 27: {
      proto::Run* run = state->add_decisions()->mutable_run();
      for (uint64_t i = 0; i < std::min<uint64_t>(value, 600); ++i) {
        run->add_operations()->set_id(1);
      }
      run->set_decision(kLastDecision + 1);
      return state->set_last_decision(kLastDecision + 1);
    }
    default:
      return;
  }
}

}  // namespace maypole::fuzz
