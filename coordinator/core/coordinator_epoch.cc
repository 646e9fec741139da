#include "coordinator/core/coordinator_epoch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/ordering/fusion.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

CoordinatorEpoch::CoordinatorEpoch(uint64_t number, uint32_t size,
                                   std::vector<NodeMember> members,
                                   const Config& config, std::string job)
    : number_(number),
      size_(size),
      members_(std::move(members)),
      job_(std::move(job)),
      fusion_threshold_(config.fusion_threshold),
      stall_check_(config.stall_check),
      stall_shutdown_(config.stall_shutdown),
      connected_(members_.size(), true),
      endpoints_(members_.size()),
      nccl_versions_(members_.size(), 0),
      sets_(&members_, size),
      joins_(size),
      table_(&members_, &sets_, config.operations),
      buckets_(config.fusion_threshold, config.fusion_age),
      stragglers_(&members_, &sets_, &table_, &joins_, stall_check_,
                  stall_shutdown_),
      deadlock_(&members_, &sets_, &table_, &joins_),
      checksums_(config.checksums),
      results_(&members_, &sets_),
      timeline_(number, members_.size()),
      stats_(members_.size()),
      has_left_(size, false),
      sent_(members_.size(), 0),
      node_runs_(members_.size(), 0),
      newest_version_(config.versions.newest),
      frozen_nodes_(config.frozen_nodes),
      eager_nodes_(config.eager_nodes),
      relay_nodes_(config.relay_nodes),
      fan_out_(config.fan_out),
      steps_(config.fusion_threshold),
      follows_(members_.size(), false) {
  for (size_t i = 0; i < members_.size(); ++i) {
    index_.emplace(members_[i].session, i);
  }
}

void CoordinatorEpoch::Start(uint64_t last_decision, JobOutput* out) {
  decision_ = last_decision;
  proto::CoordinatorMessage message;
  *message.mutable_epoch_start() = MakeStart();
  const Outgoing all(message);
  for (size_t i = 0; i < members_.size(); ++i) {
    proto::CoordinatorMessage own;
    own.mutable_epoch_start()->set_node_index(i);
    own.mutable_epoch_start()->mutable_clients()->Assign(
        members_[i].clients.begin(), members_[i].clients.end());
    ToNode(i, all.With(own), out);
  }
}

proto::EpochStart CoordinatorEpoch::MakeStart() const {
  const auto milliseconds = [](Time time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  };
  proto::EpochStart start;
  start.set_epoch(number_);
  start.set_size(size_);
  start.set_stall_check_ms(milliseconds(stall_check_));
  start.set_stall_shutdown_ms(milliseconds(stall_shutdown_));
  start.set_checksums(static_cast<uint32_t>(checksums_));
  start.set_fusion_threshold(fusion_threshold_);
  std::vector<const NodeMember*> nodes;
  for (const NodeMember& m : members_) nodes.push_back(&m);
  start.set_chunk_bytes(LeastChunk(nodes));
  start.set_min_size(min_size_);
  start.set_max_size(max_size_);
  start.set_relay_fan_out(RelayFanOut());
  start.set_takes_as_before(true);
  start.set_sends_inputs(SendsInputs());
  for (const NodeMember& m : members_) {
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

bool CoordinatorEpoch::AllKnow(uint32_t version) const {
  return std::all_of(
      members_.begin(), members_.end(),
      [version](const NodeMember& m) { return m.version >= version; });
}

uint32_t CoordinatorEpoch::RelayFanOut() const {
  if (relay_nodes_ == 0 || members_.size() <= relay_nodes_) return 0;
  return AllKnow(kRelays) ? fan_out_ : 0;
}

// Results of which only executors know the inputs have no checksums.
bool CoordinatorEpoch::SendsInputs() const {
  return members_.size() > 1 && members_.size() <= eager_nodes_ &&
         checksums_ == ChecksumMode::kOff && AllKnow(kEagerInputs);
}

void CoordinatorEpoch::SendStart(size_t node, JobOutput* out) {
  proto::CoordinatorMessage message;
  *message.mutable_epoch_start() = MakeStart();
  message.mutable_epoch_start()->set_node_index(node);
  message.mutable_epoch_start()->mutable_clients()->Assign(
      members_[node].clients.begin(), members_[node].clients.end());
  ToNode(node, std::move(message), out);
}

absl::Status CoordinatorEpoch::Handle(Time now, size_t node,
                                      const proto::ExecutorMessage& message,
                                      JobOutput* out) {
  if (TimelineRelay::Handles(message)) {
    return OnTimeline(now, node, message, out);
  }
  if (message.has_node_stats()) {
    return stats_.Take(now, node, members_[node].ranks.size(),
                       message.node_stats());
  }
  absl::Status status = Dispatch(now, node, message, out);
  stragglers_.Watch(now);
  CheckForDeadlock(now, out);
  return status;
}

// Not through ToNode(), which counts the messages that a node must handle
// before it can be sure of a deadlock.
absl::Status CoordinatorEpoch::OnTimeline(Time now, size_t node,
                                          const proto::ExecutorMessage& message,
                                          JobOutput* out) {
  if (message.has_timeline_request() &&
      !members_[node].HasRank(message.timeline_request().rank())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a timeline request of rank ",
                     message.timeline_request().rank(),
                     ", which is not a rank of the node"));
  }
  TimelineRelay::Messages messages;
  absl::Status status = timeline_.Handle(now, node, message, &messages);
  SendTimeline(std::move(messages), out);
  return status;
}

void CoordinatorEpoch::SendTimeline(TimelineRelay::Messages messages,
                                    JobOutput* out) {
  for (auto& [to, m] : messages) {
    if (!connected_[to]) continue;
    out->messages.emplace_back(members_[to].session, std::move(m));
  }
}

absl::Status CoordinatorEpoch::Dispatch(Time now, size_t node,
                                        const proto::ExecutorMessage& message,
                                        JobOutput* out) {
  switch (message.payload_case()) {
    case proto::ExecutorMessage::kEndpoint:
      return OnEndpoint(node, message.endpoint(), out);
    case proto::ExecutorMessage::kPresence:
      return OnPresence(now, node, message.presence(), out);
    case proto::ExecutorMessage::kCommunicatorId:
      return OnCommunicatorId(node, message.communicator_id(), out);
    case proto::ExecutorMessage::kRankGpu:
      return OnRankGpu(node, message.rank_gpu());
    case proto::ExecutorMessage::kSetRequest:
      return OnSetRequest(now, node, message.set_request(), out);
    case proto::ExecutorMessage::kJoinState:
      return OnJoinState(now, node, message.join_state(), out);
    case proto::ExecutorMessage::kScheduleEnded:
      return OnScheduleEnded(node, message.schedule_ended(), out);
    case proto::ExecutorMessage::kRetireNames:
      return OnRetireNames(now, node, message.retire_names(), out);
    case proto::ExecutorMessage::kResults:
      return OnResults(node, message.results(), out);
    case proto::ExecutorMessage::kBlocked:
      return deadlock_.Take(node, message.blocked());
    case proto::ExecutorMessage::kLate: {
      absl::Status status = stragglers_.Take(now, node, message.late());
      if (status.ok()) CheckForStragglers(now, out);
      return status;
    }
    default:
      return absl::InvalidArgumentError("a message of an unexpected type");
  }
}

absl::Status CoordinatorEpoch::OnEndpoint(size_t node,
                                          const proto::Endpoint& message,
                                          JobOutput* out) {
  if (members_.size() == 1) return absl::OkStatus();  // no other node
  if (!endpoints_[node].empty()) {
    return absl::InvalidArgumentError("two endpoints in one epoch");
  }
  if (message.addresses_size() != static_cast<int>(members_.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("an endpoint with ", message.addresses_size(),
                     " addresses for ", members_.size(), " nodes"));
  }
  for (const std::string& address : message.addresses()) {
    if (address.size() > kMaxAddressBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("an address of ", address.size(), " bytes; ",
                       kMaxAddressBytes, " are allowed"));
    }
  }
  endpoints_[node] = {message.addresses().begin(), message.addresses().end()};
  nccl_versions_[node] = message.nccl_version();
  if (++endpoints_given_ == members_.size()) SendEndpoints(out);
  return absl::OkStatus();
}

void CoordinatorEpoch::SendEndpoints(JobOutput* out) {
  const uint32_t nccl = AgreedNccl(out);
  if (nccl != 0) communicators_.Enable();
  for (size_t i = 0; i < members_.size(); ++i) {
    proto::CoordinatorMessage m;
    m.mutable_endpoints()->set_epoch(number_);
    m.mutable_endpoints()->set_nccl_version(nccl);
    for (size_t j = 0; j < members_.size(); ++j) {
      m.mutable_endpoints()->add_addresses(
          i == j ? "" : std::move(endpoints_[j][i]));
    }
    ToNode(i, m, out);
  }
}

absl::Status CoordinatorEpoch::OnPresence(Time now, size_t node,
                                          const proto::Presence& message,
                                          JobOutput* out) {
  // On its way when the schedule began: the node counts it in there.
  if (follows_[node]) return absl::OkStatus();
  Release release;
  absl::Status status;
  for (const proto::PresentOperation& m : message.operations()) {
    status = Report(now, node, m, &release, out);
    if (!status.ok()) break;
  }
  for (const proto::UrgentOperation& m : message.urgent()) {
    if (!status.ok()) break;
    status = OnUrgent(node, m, &release);
  }
  // Also after a bad message: operations that were released must run.
  Issue(now, release, out);
  return status;
}

void CoordinatorEpoch::OnTime(Time now, JobOutput* out) {
  Release release;
  buckets_.OnTime(now, &release);
  Issue(now, release, out);
  if (const auto late = stragglers_.Deadline(); late && *late <= now) {
    CheckForStragglers(now, out);
  }
  if (!left_untold_.empty() && left_told_at_ + kLeavePause <= now) {
    TellLeft(out);
    left_told_at_ = now;
  }
  CheckForDeadlock(now, out);
}

std::optional<Time> CoordinatorEpoch::Deadline() const {
  std::optional<Time> first = buckets_.Deadline();
  std::optional<Time> left;
  if (!left_untold_.empty()) left = left_told_at_ + kLeavePause;
  for (const auto& other :
       {stragglers_.Deadline(), deadlock_.Deadline(), left}) {
    if (other && (!first || *other < *first)) first = other;
  }
  return first;
}

std::string CoordinatorEpoch::LogPrefix(absl::string_view event) const {
  return absl::StrCat("event=", event, " job=", job_, " epoch=", number_);
}

absl::Status CoordinatorEpoch::OnUrgent(size_t node,
                                        const proto::UrgentOperation& message,
                                        Release* release) {
  absl::StatusOr<NegotiatedOperation*> op = table_.Resolve(message);
  if (!op.ok()) return op.status();
  if (*op != nullptr && table_.NoteUrgent(node, message.generation(), *op)) {
    buckets_.Urge((*op)->id, release);
  }
  return absl::OkStatus();
}

absl::Status CoordinatorEpoch::OnRetireNames(Time now, size_t node,
                                             const proto::RetireNames& message,
                                             JobOutput* out) {
  absl::Status status = table_.Retire(node, message);
  Release release;
  TellForgotten(&release, out);
  Issue(now, release, out);
  return status;
}

void CoordinatorEpoch::TellForgotten(Release* release, JobOutput* out) {
  const auto forgotten = table_.TakeForgotten();
  if (forgotten.empty()) return;
  std::vector<uint32_t> ids;
  for (const auto& f : forgotten) ids.push_back(f.id);
  buckets_.Retire(ids, release);
  for (size_t i = 0; i < members_.size(); ++i) {
    proto::CoordinatorMessage message;
    message.mutable_names_retired()->set_epoch(number_);
    for (const auto& f : forgotten) {
      if (f.set->by_node[i].empty()) continue;
      message.mutable_names_retired()->add_ids(f.id);
    }
    if (message.names_retired().ids_size() > 0) {
      ToNode(i, std::move(message), out);
    }
  }
}

absl::Status CoordinatorEpoch::Report(Time now, size_t node,
                                      const proto::PresentOperation& message,
                                      Release* release, JobOutput* out) {
  absl::StatusOr<NegotiatedOperation*> found = table_.Resolve(message);
  TellForgotten(release, out);
  if (absl::IsResourceExhausted(found.status())) {
    NegotiatedOperation unknown;
    unknown.identity = message.identity();
    FailOn(node, unknown, message.generation(), found.status(),
           /*decision=*/0, out);
    return absl::OkStatus();
  }
  if (!found.ok()) return found.status();
  NegotiatedOperation* op = *found;
  if (op == nullptr) return absl::OkStatus();  // reported again by identity
  absl::Status noted = table_.Note(now, node, message, op);
  if (!noted.ok()) return noted;
  if (absl::Status able = CheckSet(*op); !able.ok()) {
    Fail(op, able, out);
    return absl::OkStatus();
  }
  if (!table_.Complete(*op)) {
    AskToStandIn(op, out);
    return absl::OkStatus();
  }
  absl::StatusOr<ReadyOperation> valid = table_.Validate(*op);
  if (valid.ok()) {
    communicators_.Find(*op, &*valid);
    TellCommunicators(out);
    buckets_.Add(now, *std::move(valid), release);
    return absl::OkStatus();
  }
  out->Count(ErrorKind::kMismatch);
  out->Warn(absl::StrCat(LogPrefix("operation_failed"),
                         " tensor=", LogValue(op->identity.name()),
                         " reason=", LogValue(valid.status().message())));
  Fail(op, valid.status(), out);
  op->told = true;
  return absl::OkStatus();
}

void CoordinatorEpoch::Issue(Time now, const Release& release, JobOutput* out) {
  if (release.empty()) return;
  Runs runs;
  for (const Release::Part& part : release.parts) {
    out->facts.emplace_back(BucketRan{part.end});
    AddRuns(now, part.operations, &runs, out);
  }
  AddRuns(now, release.loose, &runs, out);
  SendRuns(runs, out);
  if (steps_.repeats()) BeginSchedule(out);
}

// Nodes with the same runs and numbers, normally all, share their messages.
void CoordinatorEpoch::SendRuns(const Runs& runs, JobOutput* out) {
  std::vector<size_t> shared, mine;
  uint64_t first = 0;
  std::vector<Outgoing> messages;
  for (size_t node = 0; node < members_.size(); ++node) {
    mine.clear();
    for (size_t i = 0; i < runs.size(); ++i) {
      if (!runs[i].first->by_node[node].empty()) mine.push_back(i);
    }
    if (mine.empty()) continue;
    if (mine != shared || first != node_runs_[node] + 1) {
      shared = mine;
      first = node_runs_[node] + 1;
      messages = Executes(runs, mine, first);
    }
    node_runs_[node] += mine.size();
    for (const Outgoing& m : messages) ToNode(node, m, out);
  }
}

std::vector<Outgoing> CoordinatorEpoch::Executes(
    const Runs& runs, const std::vector<size_t>& mine, uint64_t first) const {
  std::vector<Outgoing> messages;
  proto::CoordinatorMessage message;
  size_t bytes = 0;
  for (const size_t i : mine) {
    message.mutable_execute()->set_epoch(number_);
    proto::Run* m = message.mutable_execute()->add_runs();
    *m = runs[i].second;
    m->set_run(first++);
    bytes += m->ByteSizeLong();
    if (bytes < kMaxExecuteBytes) continue;
    messages.emplace_back(message);
    message.Clear();
    bytes = 0;
  }
  if (message.has_execute()) messages.emplace_back(message);
  return messages;
}

void CoordinatorEpoch::AddRuns(Time now,
                               const std::vector<ReadyOperation>& ready,
                               Runs* runs, JobOutput* out) {
  for (const std::vector<size_t>& run : Fuse(ready, fusion_threshold_)) {
    runs->emplace_back(table_.Find(ready[run.front()].id)->set,
                       MakeRun(ready, run));
    out->facts.emplace_back(RunIssued{run.size()});
    std::vector<const ReadyOperation*> together;
    for (const size_t i : run) together.push_back(&ready[i]);
    steps_.OnRun(together);
  }
  for (const ReadyOperation& r : ready) {
    out->facts.emplace_back(
        OperationIssued{r.signature.kind, r.bytes, now - r.first_present});
    NegotiatedOperation* const op = table_.Find(r.id);
    op->last = r.signature;
    table_.Settle(op);
  }
  operations_ += ready.size();
}

proto::Run CoordinatorEpoch::MakeRun(const std::vector<ReadyOperation>& ready,
                                     const std::vector<size_t>& run) {
  proto::Run m;
  ++runs_;
  m.set_decision(++decision_);
  m.set_process_set(table_.Find(ready[run.front()].id)->set->id);
  m.set_inputs_sent(std::all_of(run.begin(), run.end(), [&ready](size_t i) {
    return ready[i].inputs_sent;
  }));
  for (size_t i : run) {
    NegotiatedOperation* op = table_.Find(ready[i].id);
    proto::RunOperation* o = m.add_operations();
    o->set_id(op->id);
    o->set_generation(ready[i].generation);
    if (!op->told) *o->mutable_identity() = op->identity;
    op->told = true;
  }
  const std::vector<int64_t>& dims = ready[run.front()].first_dims;
  m.mutable_first_dims()->Assign(dims.begin(), dims.end());
  const std::vector<int64_t>& splits = ready[run.front()].splits;
  m.mutable_splits()->Assign(splits.begin(), splits.end());
  m.set_communicator(ready[run.front()].communicator);
  const std::vector<uint32_t>& gpus = ready[run.front()].member_gpus;
  m.mutable_member_gpus()->Assign(gpus.begin(), gpus.end());
  return m;
}

void CoordinatorEpoch::Fail(NegotiatedOperation* op, const absl::Status& status,
                            JobOutput* out) {
  ++decision_;
  for (size_t i = 0; i < op->nodes.size(); ++i) {
    const NodePresence& p = op->nodes[i];
    if (p.present) FailOn(i, *op, p.generation, status, decision_, out);
  }
  table_.Settle(op);
}

void CoordinatorEpoch::FailOn(size_t node, const NegotiatedOperation& op,
                              uint32_t generation, const absl::Status& status,
                              uint64_t decision, JobOutput* out) {
  proto::CoordinatorMessage message;
  proto::OperationFailed* m = message.mutable_operation_failed();
  m->set_epoch(number_);
  m->set_id(op.id);
  *m->mutable_identity() = op.identity;
  m->set_generation(generation);
  m->set_code(static_cast<int>(status.code()));
  m->set_message(Cut(status.message(), kMaxErrorBytes));
  m->set_decision(decision);
  ToNode(node, std::move(message), out);
}

void CoordinatorEpoch::End(const std::string& message, JobOutput* out) {
  proto::CoordinatorMessage m;
  m.mutable_epoch_end()->set_epoch(number_);
  m.mutable_epoch_end()->set_code(static_cast<int>(absl::StatusCode::kAborted));
  m.mutable_epoch_end()->set_message(Cut(message, kMaxErrorBytes));
  ToAll(m, out);
  TellStragglerTime(out);
  FinishResults(out);
}

std::optional<size_t> CoordinatorEpoch::IndexOf(SessionId session) const {
  const auto it = index_.find(session);
  if (it == index_.end() || !connected_[it->second]) return std::nullopt;
  return it->second;
}

std::vector<uint32_t> CoordinatorEpoch::LiveRanks(size_t node) const {
  std::vector<uint32_t> out;
  for (uint32_t rank : members_[node].ranks) {
    if (!HasLeft(rank)) out.push_back(rank);
  }
  return out;
}

void CoordinatorEpoch::ToAll(const Outgoing& message, JobOutput* out) {
  for (size_t i = 0; i < members_.size(); ++i) ToNode(i, message, out);
}

void CoordinatorEpoch::ToNode(size_t node, Outgoing message, JobOutput* out) {
  if (!connected_[node]) return;
  ++sent_[node];
  out->messages.emplace_back(members_[node].session, std::move(message));
}

}  // namespace maypole::coordinator
