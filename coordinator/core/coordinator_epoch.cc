#include "coordinator/core/coordinator_epoch.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/recovery/recovery.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

CoordinatorEpoch::CoordinatorEpoch(uint64_t number, EpochSize size,
                                   std::vector<NodeMember> members,
                                   const Config& config, std::string job,
                                   JobOutput* output)
    : config_(config),
      size_(size),
      nodes_(number, std::move(job), std::move(members), output),
      departures_(&nodes_, size.ranks),
      endpoints_(&nodes_),
      sets_(&nodes_, &departures_, size.ranks),
      joins_(&nodes_, &departures_, size.ranks),
      table_(&nodes_.members(), &sets_, config.operations),
      communicators_(&nodes_),
      buckets_(config.fusion_threshold, config.fusion_age),
      steps_(config.fusion_threshold),
      runs_(&nodes_, &sets_, &table_, &steps_, config.fusion_threshold),
      schedule_(&nodes_, &departures_, &joins_, &table_, &buckets_, &steps_,
                config),
      stalls_(&nodes_, &departures_, &sets_, &table_, &joins_, config),
      results_(&nodes_, &sets_, config.checksums),
      timeline_(&nodes_, &departures_),
      stats_(nodes_.size()) {}

// --- The start, or a start that another coordinator has made -----------------

void CoordinatorEpoch::Start(uint64_t last_decision) {
  nodes_.SetLastDecision(last_decision);
  proto::CoordinatorMessage message;
  *message.mutable_epoch_start() = MakeStart();
  const Outgoing all(message);
  for (size_t i = 0; i < nodes_.size(); ++i) SendStart(i, all);
}

void CoordinatorEpoch::SendStart(size_t node, const Outgoing& all) {
  proto::CoordinatorMessage own;
  own.mutable_epoch_start()->set_node_index(node);
  own.mutable_epoch_start()->mutable_clients()->Assign(
      nodes_[node].clients.begin(), nodes_[node].clients.end());
  nodes_.Send(node, all.With(own));
}

proto::EpochStart CoordinatorEpoch::MakeStart() const {
  const auto milliseconds = [](Time time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  };
  proto::EpochStart start;
  start.set_epoch(number());
  start.set_size(size_.ranks);
  start.set_stall_check_ms(milliseconds(config_.stall_check));
  start.set_stall_shutdown_ms(milliseconds(config_.stall_shutdown));
  start.set_checksums(static_cast<uint32_t>(config_.checksums));
  start.set_fusion_threshold(config_.fusion_threshold);
  start.set_chunk_bytes(
      std::ranges::min_element(nodes_.members(), {}, &NodeMember::chunk_bytes)
          ->chunk_bytes);
  start.set_min_size(size_.min);
  start.set_max_size(size_.max);
  start.set_relay_fan_out(RelayFanOut());
  start.set_sends_inputs(SendsInputs());
  for (const NodeMember& m : nodes_.members()) {
    proto::NodeInfo* node = start.add_nodes();
    node->set_node(m.node);
    node->set_host(m.host);
    node->set_address(m.address);
    node->set_protocol_version(m.version);
    node->mutable_ranks()->Assign(m.ranks.begin(), m.ranks.end());
    node->mutable_pids()->Assign(m.pids.begin(), m.pids.end());
    node->mutable_clients()->Assign(m.clients.begin(), m.clients.end());
  }
  return start;
}

uint32_t CoordinatorEpoch::RelayFanOut() const {
  const bool many =
      config_.relay_nodes > 0 && nodes_.size() > config_.relay_nodes;
  return many ? config_.fan_out : 0;
}

// A result whose inputs only executors know has no checksums.
bool CoordinatorEpoch::SendsInputs() const {
  return nodes_.size() > 1 && nodes_.size() <= config_.eager_nodes &&
         config_.checksums == ChecksumMode::kOff;
}

void CoordinatorEpoch::SetWanted(uint32_t new_ranks, uint32_t leaving) {
  const std::pair wanted(new_ranks, leaving);
  if (wanted == wanted_ || departures_.AllLeft()) return;
  wanted_ = wanted;
  proto::CoordinatorMessage m;
  m.mutable_membership_wanted()->set_new_ranks(new_ranks);
  m.mutable_membership_wanted()->set_leaving(leaving);
  for (size_t i = 0; i < nodes_.members().size(); ++i) {
    if (!departures_.LiveRanks(i).empty()) nodes_.SendUncounted(i, m);
  }
}

void CoordinatorEpoch::Restore(
    const std::vector<const proto::NodeState*>& states,
    const std::set<uint32_t>& left, uint64_t last_decision) {
  nodes_.SetLastDecision(last_decision);
  wanted_.reset();
  std::map<uint64_t, const proto::Decision*> decisions;
  const proto::NodeState* newest = nullptr;  // knows all process sets
  uint32_t joins = 0;
  bool connected = true;
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] == nullptr) {
      nodes_.Disconnect(i);
      continue;
    }
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
    runs_.Restore(i, state.last_run());
  }
  if (newest != nullptr) sets_.Restore(*newest);
  joins_.Restore(joins);
  departures_.Restore(left);
  schedule_.Restore(states);
  timeline_.Restore(states);
  communicators_.Restore(states, sets_);
  proto::CoordinatorMessage start, recovered;
  *start.mutable_epoch_start() = MakeStart();
  recovered.mutable_recovered()->set_endpoints(!connected);
  recovered.mutable_recovered()->set_sends_inputs(SendsInputs());
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] == nullptr) continue;
    if (!states[i]->has_start()) SendStart(i, start);
    communicators_.Resend(i, states);
    for (const auto& [number, decision] : decisions) {
      if (number > states[i]->last_decision()) runs_.Reissue(i, *decision);
    }
    if (!left.empty()) departures_.Announce(i);
    schedule_.RefuseIfUnknown(i, *states[i]);
    nodes_.Send(i, recovered);
  }
  timeline_.SendState();
}

// --- Messages ----------------------------------------------------------------

absl::Status CoordinatorEpoch::Handle(Time now, size_t node,
                                      const proto::ExecutorMessage& message) {
  switch (message.payload_case()) {
    case proto::ExecutorMessage::kTimelineRequest:
      return timeline_.OnRequest(node, message.timeline_request());
    case proto::ExecutorMessage::kTimelineRecords:
      return timeline_.OnRecords(node, message.timeline_records());
    case proto::ExecutorMessage::kTimelineTaken:
      return timeline_.OnTaken(message.timeline_taken());
    case proto::ExecutorMessage::kTimelineClosed:
      return timeline_.OnClosed(node, message.timeline_closed());
    case proto::ExecutorMessage::kClockQuery:
      return timeline_.OnClockQuery(now, node, message.clock_query());
    case proto::ExecutorMessage::kNodeStats:
      return stats_.Take(now, node, nodes_[node].ranks.size(),
                         message.node_stats());
    default: {
      absl::Status status = Dispatch(now, node, message);
      stalls_.OnEvent(now);
      return status;
    }
  }
}

absl::Status CoordinatorEpoch::Dispatch(Time now, size_t node,
                                        const proto::ExecutorMessage& message) {
  switch (message.payload_case()) {
    case proto::ExecutorMessage::kEndpoint:
      return OnEndpoint(node, message.endpoint());
    case proto::ExecutorMessage::kPresence:
      return OnPresence(now, node, message.presence());
    case proto::ExecutorMessage::kCommunicatorId:
      return communicators_.OnId(node, message.communicator_id());
    case proto::ExecutorMessage::kRankGpu:
      return communicators_.OnRankGpu(node, message.rank_gpu());
    case proto::ExecutorMessage::kSetRequest:
      return OnSetRequest(now, node, message.set_request());
    case proto::ExecutorMessage::kJoinState:
      return OnJoinState(now, node, message.join_state());
    case proto::ExecutorMessage::kScheduleEnded:
      return schedule_.OnEnded(node, message.schedule_ended());
    case proto::ExecutorMessage::kRetireNames:
      return OnRetireNames(now, node, message.retire_names());
    case proto::ExecutorMessage::kResults:
      return results_.OnResults(node, message.results());
    case proto::ExecutorMessage::kBlocked:
      return stalls_.OnBlocked(node, message.blocked());
    case proto::ExecutorMessage::kLate:
      return stalls_.OnLate(now, node, message.late());
    default:
      return InvalidArgument("a message of an unexpected type");
  }
}

absl::Status CoordinatorEpoch::OnEndpoint(size_t node,
                                          const proto::Endpoint& message) {
  absl::Status status = endpoints_.OnEndpoint(node, message);
  if (endpoints_.nccl_version() != 0) communicators_.Enable();
  return status;
}

absl::Status CoordinatorEpoch::OnPresence(Time now, size_t node,
                                          const proto::Presence& message) {
  // In flight when the schedule began: the node counts it in the schedule.
  if (schedule_.Follows(node)) return absl::OkStatus();
  Release release;
  absl::Status status;
  for (const proto::PresentOperation& m : message.operations()) {
    status = OnOperation(now, node, m, &release);
    if (!status.ok()) break;
  }
  for (const proto::UrgentOperation& m : message.urgent()) {
    if (!status.ok()) break;
    status = OnUrgent(node, m, &release);
  }
  // Also after a bad message: operations that were released must run.
  Issue(now, release);
  return status;
}

absl::Status CoordinatorEpoch::OnOperation(
    Time now, size_t node, const proto::PresentOperation& message,
    Release* release) {
  absl::StatusOr<NegotiatedOperation*> found = table_.Resolve(message);
  SendForgotten(release);
  if (absl::IsResourceExhausted(found.status())) {
    NegotiatedOperation unknown;
    unknown.identity = message.identity();
    runs_.FailOn(node, unknown, message.generation(), found.status());
    return absl::OkStatus();
  }
  if (!found.ok()) return found.status();
  NegotiatedOperation* op = *found;
  if (op == nullptr) return absl::OkStatus();  // reported again by identity
  absl::Status noted = table_.Note(now, node, message, op);
  if (!noted.ok()) return noted;
  if (absl::Status able = CheckSet(*op); !able.ok()) {
    runs_.Fail(op, able);
    return absl::OkStatus();
  }
  if (!table_.Complete(*op)) {
    joins_.RequestStandIns(op);
    return absl::OkStatus();
  }
  absl::StatusOr<ReadyOperation> valid = table_.Validate(*op);
  if (valid.ok()) {
    communicators_.Choose(*op, &*valid);
    buckets_.Add(now, *std::move(valid), release);
    return absl::OkStatus();
  }
  nodes_.Count(ErrorKind::kMismatch);
  nodes_.Warn("operation_failed", " tensor=", LogValue(op->identity.name()),
              " reason=", LogValue(valid.status().message()));
  runs_.Fail(op, valid.status());
  op->told = true;
  return absl::OkStatus();
}

absl::Status CoordinatorEpoch::OnUrgent(size_t node,
                                        const proto::UrgentOperation& message,
                                        Release* release) {
  absl::StatusOr<NegotiatedOperation*> op = table_.Resolve(message);
  if (!op.ok()) return op.status();
  if (*op != nullptr && table_.NoteUrgent(node, message.generation(), *op)) {
    buckets_.MarkUrgent((*op)->id, release);
  }
  return absl::OkStatus();
}

absl::Status CoordinatorEpoch::OnRetireNames(
    Time now, size_t node, const proto::RetireNames& message) {
  absl::Status status = table_.Retire(node, message);
  Release release;
  SendForgotten(&release);
  Issue(now, release);
  return status;
}

void CoordinatorEpoch::SendForgotten(Release* release) {
  const auto forgotten = table_.TakeForgotten();
  if (forgotten.empty()) return;
  std::vector<uint32_t> ids;
  for (const auto& f : forgotten) ids.push_back(f.id);
  buckets_.Retire(ids, release);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    proto::CoordinatorMessage message;
    for (const auto& f : forgotten) {
      if (f.set->by_node[i].empty()) continue;
      message.mutable_names_retired()->add_ids(f.id);
    }
    if (message.names_retired().ids_size() > 0) nodes_.Send(i, message);
  }
}

absl::Status CoordinatorEpoch::OnSetRequest(Time now, size_t node,
                                            const proto::SetRequest& message) {
  const auto busy = [this](uint32_t process_set) {
    const auto pending = std::as_const(table_).Pending();
    return std::ranges::any_of(pending, [&](const NegotiatedOperation* op) {
      return op->set->id == process_set;
    });
  };
  return sets_.OnRequest(now, node, message, busy);
}

absl::Status CoordinatorEpoch::OnJoinState(Time now, size_t node,
                                           const proto::JoinState& message) {
  const uint32_t rank = message.rank();
  if (!nodes_[node].HasRank(rank) || departures_.Has(rank)) {
    return InvalidArgument("a join of rank ", rank,
                           ", which is not a rank of the node or has left");
  }
  absl::StatusOr<bool> aside = joins_.OnState(node, message);
  if (!aside.ok() || !*aside) return aside.status();
  stalls_.OnAside(now, rank);
  for (NegotiatedOperation* op : table_.Pending()) {
    if (op->set->Has(rank)) joins_.RequestStandIns(op);
  }
  return absl::OkStatus();
}

void CoordinatorEpoch::Issue(Time now, const Release& release) {
  if (release.empty()) return;
  runs_.Issue(now, release);
  schedule_.BeginIfRepeated();
}

absl::Status CoordinatorEpoch::CheckSet(const NegotiatedOperation& op) const {
  if (const auto rank = departures_.FirstOf(*op.set)) {
    return absl::AbortedError(absl::StrCat(
        nodes_.RankText(*rank), " has shut down; ", op.Text(), " needs it"));
  }
  if (!op.set->removed) return absl::OkStatus();
  return InvalidArgument(op.Text(), " cannot run: the set has been removed");
}

// --- Other events ------------------------------------------------------------

void CoordinatorEpoch::OnTime(Time now) {
  Release release;
  buckets_.OnTime(now, &release);
  Issue(now, release);
  departures_.OnTime(now);
  stalls_.OnTime(now);
}

std::optional<Time> CoordinatorEpoch::Deadline() const {
  return Earlier(buckets_.Deadline(), stalls_.Deadline(),
                 departures_.Deadline());
}

void CoordinatorEpoch::OnRankLeft(uint32_t rank) {
  departures_.OnLeft(rank);
  for (NegotiatedOperation* op : table_.Pending()) {
    if (!op->set->Has(rank)) continue;
    buckets_.DropHeld(op->set->id);
    runs_.Fail(op, CheckSet(*op));
  }
  sets_.OnRankLeft(rank);
  joins_.OnRankLeft();
  stalls_.OnRankLeft();
  if (departures_.AllLeft()) ReportFinally();
}

void CoordinatorEpoch::End(const absl::Status& why) {
  proto::CoordinatorMessage m;
  m.mutable_epoch_end()->set_code(static_cast<int>(why.code()));
  m.mutable_epoch_end()->set_message(Cut(why.message(), kMaxErrorBytes));
  nodes_.SendAll(m);
  ReportFinally();
}

void CoordinatorEpoch::ReportFinally() {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Time late = table_.straggler_time().TakeUntilNow(i);
    if (late == Time::zero()) continue;
    nodes_.Report(StragglerNode{nodes_.job(), nodes_[i].node, late});
  }
  results_.Finish();
}

const absl::Status& CoordinatorEpoch::verdict() const {
  return stalls_.verdict().ok() ? results_.verdict() : stalls_.verdict();
}

// --- The operator ------------------------------------------------------------

void CoordinatorEpoch::FillStatus(proto::JobStatus* status) const {
  status->set_size(size_.ranks);
  for (const auto& [rank, held] : stragglers().late_for()) {
    if (!departures_.Has(rank)) status->add_late_ranks(rank);
  }
  runs_.FillStatus(status);
  schedule_.FillStatus(status);
  timeline_.FillStatus(status);
  status->set_pending_operations(static_cast<uint32_t>(pending()));
  for (const NegotiatedOperation* op : table_.Pending()) {
    if (status->pending_size() >= kMaxStatusPending) break;
    proto::PendingOperation* p = status->add_pending();
    p->set_name(op->identity.name());
    p->set_kind(op->identity.kind());
    p->set_process_set(op->identity.process_set());
    for (const size_t i : op->set->nodes) {
      if (op->nodes[i].present) {
        p->set_generation(op->nodes[i].generation);
        continue;
      }
      p->set_missing(p->missing() + 1);
      if (p->missing_nodes_size() >= kMaxStatusMissing) continue;
      p->add_missing_nodes(nodes_[i].node);
    }
  }
}

void CoordinatorEpoch::FillStatus(Time now, size_t node,
                                  proto::NodeStatus* status) const {
  const NodeMember& member = nodes_[node];
  status->mutable_ranks()->Assign(member.ranks.begin(), member.ranks.end());
  for (size_t i = 0; i < member.ranks.size(); ++i) {
    const uint32_t rank = member.ranks[i];
    proto::RankStatus* r = status->add_rank_status();
    r->set_rank(rank);
    r->set_pid(member.PidOf(i));
    communicators_.FillStatus(r);
    const auto late = stragglers().late_for().find(rank);
    if (departures_.Has(rank)) {
      r->set_state("left");
    } else if (late == stragglers().late_for().end()) {
      r->set_state("running");
    } else {
      r->set_state("late");
      r->mutable_late_for()->Assign(late->second.begin(), late->second.end());
    }
  }
  stats_.Fill(now, node, status);
}

void CoordinatorEpoch::Watch(Time now) {
  if (!stats_.Watch(now)) return;
  proto::CoordinatorMessage message;
  message.mutable_watch_stats()->set_every_ms(kStatsInterval.count());
  message.mutable_watch_stats()->set_for_ms(kWatchTime.count());
  nodes_.SendAllUncounted(message);
}

}  // namespace maypole::coordinator
