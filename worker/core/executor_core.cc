#include "worker/core/executor_core.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

// After this many starts in a row that failed because of this node's network,
// its elastic ranks are refused.
constexpr int kMaxFailedStarts = 3;

}  // namespace

std::string ExecutorCore::RankText(const LocalMember& m) const {
  return absl::StrCat("rank ", m.rank, " (pid ", m.pid, ", host ",
                      m.host.empty() ? options_.host : m.host, ", node ",
                      options_.node, ")");
}

std::vector<std::string> ExecutorCore::NodeNames() const {
  std::vector<std::string> names;
  if (!epoch_) return names;
  for (const proto::NodeInfo& node : epoch_->info().nodes) {
    names.push_back(node.node());
  }
  return names;
}

// --- Time --------------------------------------------------------------------

void ExecutorCore::OnTime(int64_t now_ms) {
  now_ms_ = now_ms;
  if ((link_.away() || link_.recovering()) && phase_ == Phase::kRunning) {
    epoch_->names().OnCoordinatorMissing(now_ms);
  }
  if (absl::Status s =
          link_.OnTime(now_ms, link_.away() && WaitsForCoordinator());
      !s.ok()) {
    OnLinkLost(s);
  }
  if (give_up_ms_ && now_ms >= *give_up_ms_) GiveUpNetwork();
  InEpoch([now_ms](ExecutorEpoch& epoch) { return epoch.OnTime(now_ms); });
  if (phase_ == Phase::kRunning && stats_watch_.Due(now_ms)) {
    actions_.push_back(SendStats{epoch_number()});
  }
  if (absl::Status s = gathering_.CheckTime(now_ms); !s.ok()) {
    WithdrawWaiting();
    gathering_.Refuse(s);
  }
  returning_.OnTime(now_ms);
  // Other nodes use an epoch that drains.
  if (clients() > 0 || epoch_ || owes_report()) {
    idle_since_ms_ = idle_told_ms_ = now_ms;
    return;
  }
  const int64_t patience_ms =
      keeps_states_ ? std::max(kIdleMs, options_.state_timeout_ms) : kIdleMs;
  if (now_ms - idle_since_ms_ >= patience_ms &&
      now_ms - idle_told_ms_ >= kIdleMs / 10) {
    idle_told_ms_ = now_ms;
    actions_.push_back(ReportIdle{});
  }
}

// --- Clients that come -------------------------------------------------------

void ExecutorCore::OnClient(ClientId client, const session::Hello& hello,
                            int visible_pid) {
  absl::Status status;
  if (hello.elastic != 0) {
    status = CheckElastic(hello);
  } else if (members_.elastic()) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "rank ", hello.rank, " is not elastic, but job '", options_.job,
        "' is running with elastic ranks; start all ranks of a job alike"));
  } else if (const LocalMember* m = members_.FindRank(hello.rank)) {
    status = absl::AlreadyExistsError(
        absl::StrCat("rank ", hello.rank, " of job '", options_.job,
                     "' is connected already (pid ", m->pid,
                     "); was the job started twice with one MAYPOLE_JOB?"));
  }
  if (status.ok()) {
    status = gathering_.Add(now_ms_, client, hello, visible_pid);
  }
  if (!status.ok()) {
    actions_.push_back(Refusal(client, status));
    return;
  }
  if (hello.elastic != 0) returning_.OnReturned(visible_pid);
  if (link_.Open()) gathering_.OnSessionOpened();
  if (gathering_.elastic()) return gathering_.ReportElastic();
  BeginIfComplete();
}

absl::Status ExecutorCore::CheckElastic(const session::Hello& hello) const {
  if (!members_.empty() && !members_.elastic()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the process (pid ", hello.pid, ") is elastic, but job '", options_.job,
        "' is running with ranks that are not; start all ranks of a job "
        "alike"));
  }
  const LocalMember* m = members_.FindRank(hello.rank);
  // The pid is compared because another process may have had that rank before
  // the coordinator was restarted.
  if (m != nullptr && hello.last_epoch > 0 &&
      hello.last_epoch == epoch_number() && hello.pid == m->pid) {
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", hello.rank, " of job '", options_.job,
                     "' is connected already (pid ", m->pid, ")"));
  }
  return absl::OkStatus();
}

// A start that is complete here goes on. The connections of other waiting
// clients are closed; these clients then connect to the agent's successor.
void ExecutorCore::OnSupervisorGone() {
  const Membership& waiting = gathering_.ranks();
  const bool elastic = waiting.elastic();
  const bool starts = elastic ? phase_ != Phase::kIdle : waiting.complete();
  if (waiting.empty() || starts) return;
  gathering_.CloseAll();
  elastic ? gathering_.ReportElastic() : WithdrawWaiting();
}

// --- Requests ----------------------------------------------------------------

const LocalMember* ExecutorCore::RunningMember(ClientId client) const {
  return phase_ == Phase::kRunning ? members_.Find(client) : nullptr;
}

template <typename Reply>
void ExecutorCore::ReplyNoEpoch(ClientId client, Reply reply) {
  const bool aborted =
      members_.Find(client) != nullptr && phase_ == Phase::kEnded;
  const absl::Status why =
      aborted ? abort_ : absl::FailedPreconditionError("no epoch is running");
  reply.code = static_cast<uint32_t>(why.code());
  session::SetText(reply.text, std::string(why.message()));
  actions_.push_back(ReplyClient{client, reply});
}

void ExecutorCore::OnSlotRequest(ClientId client,
                                 const session::SlotRequest& request) {
  if (const LocalMember* m = RunningMember(client)) {
    return epoch_->names().OnRequest(*m, request);
  }
  auto reply = session::Make<session::SlotReply>();
  reply.request = request.request;
  ReplyNoEpoch(client, reply);
}

void ExecutorCore::OnSlotReturn(ClientId client,
                                const session::SlotReturn& answer) {
  InEpochOf(client, [&](ExecutorEpoch& epoch, const LocalMember& m) {
    return epoch.names().OnReturn(m, answer);
  });
}

void ExecutorCore::OnSetRequest(ClientId client,
                                const session::SetRequest& request) {
  if (RunningMember(client) == nullptr) {
    auto reply = session::Make<session::SetReply>();
    reply.number = request.number;
    return ReplyNoEpoch(client, reply);
  }
  InEpochOf(client, [&](ExecutorEpoch& epoch, const LocalMember& m) {
    return epoch.OnSetRequest(m, request);
  });
}

void ExecutorCore::OnJoinRequest(ClientId client,
                                 const session::JoinRequest& request) {
  if (RunningMember(client) == nullptr) {
    auto reply = session::Make<session::JoinReply>();
    reply.number = request.number;
    return ReplyNoEpoch(client, reply);
  }
  InEpochOf(client, [&](ExecutorEpoch& epoch, const LocalMember& m) {
    return epoch.OnJoinRequest(m, request);
  });
}

void ExecutorCore::OnGpuMemoryRequest(
    ClientId client, const session::GpuMemoryRequest& request) {
  InEpochOf(client, [&](ExecutorEpoch& epoch, const LocalMember& m) {
    return epoch.memories().OnRequest(m, request);
  });
}

void ExecutorCore::OnResultRecords(ClientId client,
                                   const session::ResultRecords& records) {
  InEpochOf(client, [&](ExecutorEpoch& epoch, const LocalMember& m) {
    return epoch.results().OnRecords(m, records);
  });
}

// --- Clients that leave ------------------------------------------------------

void ExecutorCore::OnGoodbye(ClientId client, uint32_t pending, bool returns) {
  const LocalMember* found = members_.Find(client);
  // A process that cannot be watched is not expected back.
  const bool watched = found != nullptr && found->elastic &&
                       found->visible_pid > 0 && epoch_number() > 0;
  returns = returns && watched;
  if (returns) {
    // Other ranks may wait longer for this one than its own start timeout.
    returning_.Add(
        *found, epoch_number(),
        now_ms_ + std::max(found->start_timeout_ms, options_.start_timeout_ms));
  } else if (watched && found->finished) {
    returning_.Add(*found, epoch_number(), std::nullopt);
  }
  actions_.push_back(CloseClient{client});
  if (found != nullptr) {
    const LocalMember m = *found;
    members_.Remove(client);
    const char* const operations = pending == 1 ? " operation" : " operations";
    const std::string what =
        m.leave_reason.empty()
            ? absl::StrCat(
                  "has shut down with ", pending, operations, " pending",
                  phase_ == Phase::kRunning ? epoch_->left().AfterText() : "")
            : absl::StrCat("has left with ", pending, operations,
                           " pending: ", m.leave_reason);
    MemberGone(m, pending == 0, what, absl::StrCat("it ", what), returns);
  } else if (gathering_.ranks().Find(client) != nullptr) {
    LeaveGathering(client);
  }
}

void ExecutorCore::OnClientGone(ClientId client, const std::string& how) {
  if (const LocalMember* found = members_.Find(client)) {
    const LocalMember m = *found;
    members_.Remove(client);
    MemberGone(m, false, absl::StrCat("died: ", how), how);
  } else if (gathering_.ranks().Find(client) != nullptr) {
    LeaveGathering(client);
  }
}

void ExecutorCore::OnProcessEnded(ClientId client) {
  std::optional<proto::ExecutorMessage> gone = returning_.OnEnded(client);
  if (gone) SendGone(*std::move(gone));
}

void ExecutorCore::LeaveGathering(ClientId client) {
  const bool elastic = gathering_.elastic();
  gathering_.Remove(client);
  if (elastic) return gathering_.ReportElastic();
  if (phase_ == Phase::kIdle) gathering_.ReportWaiting();
}

void ExecutorCore::MemberGone(const LocalMember& m, bool clean,
                              const std::string& what, const std::string& how,
                              bool returns) {
  if (starting() && m.elastic) {
    SendRankGone(m, false, how);
    return WaitAgain(absl::AbortedError(absl::StrCat(RankText(m), " ", what)));
  }
  if (starting()) {
    SendRankGone(m, false, how);
    FailStart(absl::AbortedError(
        absl::StrCat("the job cannot start: ", RankText(m), " ", what)));
  } else if (phase_ == Phase::kRunning && clean) {
    // Must be sent before the coordinator ends an epoch that all ranks have
    // left.
    epoch_->results().OnNoMore(static_cast<uint32_t>(m.local_rank));
    SendRankGone(m, true, "has shut down", returns);
    InEpoch([&](ExecutorEpoch& epoch) {
      return epoch.OnRankLeft(
          m.rank, m.local_rank,
          absl::StrCat(RankText(m),
                       " has shut down; operations that need it cannot run"));
    });
  } else if (phase_ == Phase::kRunning) {
    SendRankGone(m, false, how, returns);
    FailEpoch(absl::AbortedError(absl::StrCat(RankText(m), " ", what)));
  } else if (phase_ == Phase::kEnded && m.elastic) {
    // The coordinator needs this to decide when the next epoch starts.
    SendRankGone(m, clean, how, returns);
  }
  if (phase_ != Phase::kRunning && !members_.empty()) {
    actions_.push_back(MarkGone{m.local_rank});
  }
  AfterMemberGone();
}

void ExecutorCore::AfterMemberGone() {
  if (!members_.empty()) return;
  if (phase_ == Phase::kEnded) {
    ForgetEpoch();
    phase_ = Phase::kIdle;
  } else if (phase_ == Phase::kRunning) {
    phase_ = Phase::kIdle;
    give_up_ms_.reset();
    if (epoch_->left().Live() == 0) ForgetEpoch();
  }
  BeginIfComplete();
}

// The rank is not marked as gone: its process lives and may still write to
// other ranks' memory.
void ExecutorCore::Expel(const BoardWatch::Frozen& frozen) {
  const auto it = members_.members().find(static_cast<int>(frozen.local));
  if (it == members_.members().end()) return;
  const LocalMember m = it->second;
  members_.Remove(m.client);
  actions_.push_back(CloseClient{m.client});
  SendRankGone(m, false, absl::StrCat("it ", frozen.what));
  FailEpoch(absl::AbortedError(absl::StrCat(RankText(m), " ", frozen.what)));
  AfterMemberGone();
}

void ExecutorCore::SendRankGone(const LocalMember& m, bool clean,
                                const std::string& how, bool returns) {
  proto::ExecutorMessage message;
  message.set_epoch(epoch_number());
  proto::RankGone* gone = message.mutable_rank_gone();
  gone->set_rank(static_cast<uint32_t>(m.rank));
  gone->set_clean(clean);
  gone->set_how(how);
  gone->set_returns(returns);
  gone->set_finished(m.finished && !returns);
  SendGone(std::move(message));
}

void ExecutorCore::SendGone(proto::ExecutorMessage message) {
  last_epoch_.AddGone(message);
  link_.Send(std::move(message));
}

// --- Starts ------------------------------------------------------------------

void ExecutorCore::BeginIfComplete() {
  if (phase_ != Phase::kIdle || gathering_.elastic()) return;
  if (!gathering_.ranks().complete()) {
    if (!gathering_.ranks().empty()) gathering_.ReportWaiting();
    return;
  }
  members_ = gathering_.Take();
  phase_ = Phase::kReady;
  gathering_.ReportReady(members_);
}

void ExecutorCore::OnEpochStart(const proto::EpochStart& start) {
  if (!start.clients().empty()) {
    if (!TakeIn(start)) return;
    // Report even if no rank waits: the coordinator ignores reports that were
    // sent while this message was on its way, because they were of an earlier
    // round.
    gathering_.ReportElastic();
  }
  if (phase_ != Phase::kReady) return;  // it crossed our RankGone
  ForgetEpoch();                        // it has drained by now
  std::vector<int> ranks;
  for (const auto& [local, m] : members_.members()) ranks.push_back(m.rank);
  absl::StatusOr<EpochInfo> info = ReadEpochStart(start, ranks);
  absl::Status status = info.status();
  if (status.ok()) status = CheckVersions(*info, options_.versions);
  if (!status.ok()) {
    SendFailed(start.epoch(), status);
    return FailStart(status);
  }
  early_.clear();
  last_epoch_.Begin(start);
  epoch_.emplace(*info, options_, &link_, &actions_);
  epoch_->watch().CountHandled();
  nccl_version_ = options_.nccl_version;
  if (!info->several_nodes()) return MakeBoard();
  phase_ = Phase::kPreparing;
  PrepareBackend prepare{info->epoch, info->node_index};
  for (uint32_t i = 0; i < info->nodes.size(); ++i) {
    prepare.node_names.push_back(info->NodeText(i));
    prepare.node_addresses.push_back(info->nodes[i].address());
  }
  actions_.push_back(std::move(prepare));
}

bool ExecutorCore::TakeIn(const proto::EpochStart& start) {
  if (phase_ == Phase::kEnded) {
    // The job continues without ranks that have not left the previous epoch.
    for (const auto& [local, m] : members_.members()) {
      actions_.push_back(CloseClient{m.client});
    }
    members_ = Membership();
    AfterMemberGone();
  }
  const std::vector<ClientId> clients(start.clients().begin(),
                                      start.clients().end());
  if (phase_ != Phase::kIdle ||
      std::set<ClientId>(clients.begin(), clients.end()).size() !=
          clients.size() ||
      start.node_index() >= static_cast<uint32_t>(start.nodes_size()) ||
      start.nodes(start.node_index()).ranks_size() != start.clients_size()) {
    SendFailed(start.epoch(),
               absl::InternalError("the EpochStart message is invalid"));
    return false;
  }
  // The previous epoch has drained, also if this one cannot start here.
  ForgetEpoch();
  const auto& own = start.nodes(start.node_index()).ranks();
  std::vector<uint32_t> missing;  // their clients have disconnected meanwhile
  for (size_t i = 0; i < clients.size(); ++i) {
    if (gathering_.ranks().Find(clients[i]) == nullptr) {
      missing.push_back(own[static_cast<int>(i)]);
    }
  }
  if (!missing.empty()) {
    RefuseStart(start, missing);
    return false;
  }
  members_ = gathering_.TakeOut(clients, {own.begin(), own.end()},
                                static_cast<int>(start.size()));
  phase_ = Phase::kReady;
  return true;
}

void ExecutorCore::RefuseStart(const proto::EpochStart& start,
                               const std::vector<uint32_t>& missing) {
  const std::string how = "it ended before the epoch began";
  last_epoch_.Begin(start);
  last_epoch_.End(absl::AbortedError(
      absl::StrCat("rank ", missing.front(), " (node ", options_.node,
                   ", host ", options_.host, ") was lost: ", how)));
  for (const uint32_t rank : missing) {
    proto::ExecutorMessage message;
    message.set_epoch(start.epoch());
    message.mutable_rank_gone()->set_rank(rank);
    message.mutable_rank_gone()->set_how(how);
    SendGone(std::move(message));
  }
  gathering_.ReportElastic();
}

void ExecutorCore::OnBackendPrepared(
    const absl::StatusOr<std::vector<std::string>>& addresses) {
  if (phase_ != Phase::kPreparing) return;
  if (!addresses.ok()) return StartFailedHere(addresses.status());
  proto::ExecutorMessage message;
  message.set_epoch(epoch_number());
  for (const std::string& a : *addresses) {
    message.mutable_endpoint()->add_addresses(a);
  }
  message.mutable_endpoint()->set_nccl_version(
      options_.nccl_between_nodes ? options_.nccl_version : 0);
  last_epoch_.SetEndpoint(message);
  link_.Send(std::move(message));
}

void ExecutorCore::OnEndpoints(uint64_t epoch,
                               const proto::Endpoints& endpoints) {
  if (!epoch_ || epoch != epoch_->info().epoch) return;
  epoch_->watch().CountHandled();
  // A coordinator that has replaced another sends it to all nodes again.
  if (phase_ != Phase::kPreparing) return;
  last_epoch_.SetConnected();
  phase_ = Phase::kConnecting;
  nccl_version_ = endpoints.nccl_version();
  actions_.push_back(ConnectBackend{
      {endpoints.addresses().begin(), endpoints.addresses().end()}});
}

void ExecutorCore::OnBackendConnected(const absl::Status& status) {
  if (phase_ != Phase::kConnecting) return;
  status.ok() ? MakeBoard() : StartFailedHere(status);
}

void ExecutorCore::MakeBoard() {
  phase_ = Phase::kCreating;
  const EpochInfo& info = epoch_->info();
  CreateBoard create;
  create.checksums = info.checksums;
  create.version = members_.BoardVersion(options_.versions.newest);
  create.config.epoch = info.epoch;
  create.config.size = static_cast<uint32_t>(info.size);
  create.config.local_size = static_cast<uint32_t>(members_.local_size());
  create.config.nodes = static_cast<uint32_t>(info.nodes.size());
  create.config.node_index = info.node_index;
  create.config.slots =
      (options_.slots + kSlotStep - 1) / kSlotStep * kSlotStep;
  create.config.runs = options_.records;
  create.config.chunk_bytes = info.chunk_bytes;
  create.config.ring_depth = options_.ring_depth;
  create.config.arena_bytes = options_.arena_bytes;
  create.config.gpu_communicators = nccl_version_ != 0 ? 1 : 0;
  if (nccl_version_ != 0) {
    epoch_->EnableNccl(nccl_version_, options_.nccl_host);
  }
  for (const auto& [local, m] : members_.members()) {
    create.config.global_rank[local] = m.rank;
    create.clients.push_back(m.client);
    create.pids.push_back(m.visible_pid);
  }
  actions_.push_back(std::move(create));
}

bool ExecutorCore::OnBoardCreated(const absl::Status& status) {
  if (phase_ != Phase::kCreating) return false;
  if (status.ok()) {
    phase_ = Phase::kRunning;
    failed_starts_ = 0;
    epoch_->relays().OnReady(epoch_->info().node_index);
    for (const auto& m : std::exchange(early_, {})) OnCoordinator(m);
    return true;
  }
  const absl::Status why(
      status.code(),
      absl::StrCat(
          "node ", options_.node, " (host ", options_.host,
          ") cannot make the job's shared memory: ", status.message()));
  SendFailed(epoch_number(), why);
  FailStart(why);
  return false;
}

void ExecutorCore::StartFailedHere(const absl::Status& status) {
  SendFailed(epoch_number(), status);
  if (members_.elastic() && ++failed_starts_ < kMaxFailedStarts) {
    return WaitAgain(status);
  }
  failed_starts_ = 0;
  FailStart(absl::UnavailableError(status.message()));
}

void ExecutorCore::WaitAgain(const absl::Status& why) {
  last_epoch_.End(why);
  gathering_.TakeBack(std::exchange(members_, Membership()));
  phase_ = Phase::kIdle;
  ForgetEpoch();
  gathering_.ReportElastic();
}

void ExecutorCore::FailStart(const absl::Status& why) {
  if (members_.elastic() && epoch_number() > 0) {
    for (const auto& [local, m] : members_.members()) {
      SendRankGone(m, false, "it was refused");
    }
  }
  if (phase_ != Phase::kReady) last_epoch_.End(why);
  for (const auto& [local, m] : members_.members()) {
    actions_.push_back(Refusal(m.client, why));
  }
  members_ = Membership();
  // Before EpochStart, epoch_ is the previous epoch. It may still be draining:
  // other nodes may be receiving what our backend has sent.
  const bool draining = phase_ == Phase::kReady;
  phase_ = Phase::kIdle;
  if (!draining) ForgetEpoch();
  BeginIfComplete();
}

void ExecutorCore::ForgetEpoch() {
  if (epoch_) actions_.push_back(DropEpoch{});
  epoch_.reset();
}

// --- Board and backend -------------------------------------------------------

void ExecutorCore::OnReadySlot(const ReadySlot& ready) {
  InEpoch([&](ExecutorEpoch& epoch) { return epoch.OnReadySlot(ready); });
}

void ExecutorCore::OnIdleSlots(const std::vector<IdleSlot>& idle) {
  if (phase_ == Phase::kRunning) epoch_->names().OnIdleSlots(idle);
}

void ExecutorCore::OnSlotFreed(uint32_t slot, uint32_t first) {
  InEpoch(
      [&](ExecutorEpoch& epoch) { return epoch.names().OnFreed(slot, first); });
}

void ExecutorCore::OnSnapshot(const BoardSnapshot& snapshot) {
  if (phase_ != Phase::kRunning) return;
  const auto frozen = epoch_->watch().OnSnapshot(now_ms_, snapshot);
  if (frozen) Expel(*frozen);
}

void ExecutorCore::OnRunFree(uint32_t record) {
  if (phase_ == Phase::kRunning) epoch_->OnRunFree(record);
}

void ExecutorCore::OnBoardFull(const absl::Status& status) {
  FailEpochHere(absl::Status(
      status.code(), absl::StrCat("node ", options_.node, " (host ",
                                  options_.host, "): ", status.message())));
}

void ExecutorCore::OnGpuMemoryOpened(
    GpuMemoryId id, const absl::StatusOr<OpenedGpuMemory>& opened) {
  if (phase_ == Phase::kRunning) epoch_->memories().OnOpened(id, opened);
}

void ExecutorCore::OnCommunicatorIdMade(uint32_t number,
                                        const absl::StatusOr<std::string>& id) {
  InEpoch([&](ExecutorEpoch& epoch) {
    return epoch.communicators().OnIdMade(number, id);
  });
}

void ExecutorCore::OnGpuRunEnded(const GpuRun& run,
                                 const absl::Status& status) {
  if (phase_ != Phase::kRunning) return;
  const absl::Status s = epoch_->gpu_runs().OnEnded(run, status);
  if (s.ok()) return;
  // NCCL reports that GPUs of other nodes are lost, but not why. Then all runs
  // here fail, even those of this node alone.
  if (absl::IsUnavailable(s) && epoch_->info().several_nodes()) {
    return AwaitCause(s);
  }
  FailEpochHere(s);
}

bool ExecutorCore::OnNetworkFailed(const absl::Status& status) {
  if (phase_ != Phase::kRunning || give_up_ms_) return false;
  AwaitCause(absl::Status(
      status.code(),
      absl::StrCat("the network between nodes failed on node ", options_.node,
                   " (host ", options_.host, "): ", status.message())));
  return true;
}

void ExecutorCore::OnPeerMessage(uint32_t node,
                                 const proto::PeerMessage& message) {
  if (message.has_below_ready()) {
    if (epoch_) epoch_->relays().OnReady(node);
    return;
  }
  if (message.has_relayed()) {
    if (phase_ == Phase::kRunning) {
      epoch_->relays().OnRelayed(message.relayed());
    }
    return;
  }
  if (phase_ != Phase::kRunning && !drains()) return;
  const absl::Status s = epoch_->OnPeerMessage(node, message);
  if (!s.ok() && phase_ == Phase::kRunning) FailEpochHere(s);
}

// --- Messages of the coordinator ---------------------------------------------

void ExecutorCore::OnCoordinator(const proto::CoordinatorMessage& message) {
  // Messages that were kept for later come here twice.
  gathering_.OnCoordinator(message);
  last_epoch_.Take(message);
  switch (message.payload_case()) {
    case proto::CoordinatorMessage::kEpochStart:
      return OnEpochStart(message.epoch_start());
    case proto::CoordinatorMessage::kEndpoints:
      return OnEndpoints(message.epoch(), message.endpoints());
    case proto::CoordinatorMessage::kEpochEnd:
      return OnEpochEnd(message.epoch(), message.epoch_end());
    case proto::CoordinatorMessage::kMembershipWanted:
      return OnMembershipWanted(message);
    case proto::CoordinatorMessage::kRelayed:
      if (phase_ != Phase::kRunning) return;
      return epoch_->relays().OnRelayed(message.relayed());
    case proto::CoordinatorMessage::kRecovered:
      return OnRecovered(message.epoch(), message.recovered());
    case proto::CoordinatorMessage::kWatchStats:
      if (message.epoch() != epoch_number()) return;
      return stats_watch_.OnWatch(now_ms_, message.watch_stats());
    default:
      break;  // a message for the running epoch, or one that the link handles
  }
  if (KeptForLater(message)) return;
  const bool of_epoch =
      phase_ == Phase::kRunning && message.epoch() == epoch_number();
  if (of_epoch) epoch_->watch().CountHandled();
  if (message.has_rank_left()) {
    return OnRankLeftElsewhere(message.epoch(), message.rank_left());
  }
  // The other nodes wait for this node's answer, although its ranks have left.
  if (drains() && message.has_schedule() &&
      message.epoch() == epoch_->info().epoch) {
    static_cast<void>(epoch_->schedule().OnSchedule(message.schedule()));
    return;
  }
  if (!of_epoch) return;
  if (absl::Status s = OnEpochMessage(message); !s.ok()) FailEpochHere(s);
}

absl::Status ExecutorCore::OnEpochMessage(
    const proto::CoordinatorMessage& message) {
  switch (message.payload_case()) {
    case proto::CoordinatorMessage::kExecute:
      return epoch_->OnExecute(message.execute());
    case proto::CoordinatorMessage::kOperationFailed:
      return epoch_->OnOperationFailed(message.operation_failed());
    case proto::CoordinatorMessage::kSetReply:
      return epoch_->requests().OnSetReply(message.set_reply());
    case proto::CoordinatorMessage::kJoinReply:
      epoch_->requests().OnJoinReply(message.join_reply());
      break;
    case proto::CoordinatorMessage::kStandIn:
      return epoch_->names().OnStandIn(message.stand_in());
    case proto::CoordinatorMessage::kNamesRetired:
      return epoch_->OnNamesRetired(message.names_retired());
    case proto::CoordinatorMessage::kSchedule:
      return epoch_->schedule().OnSchedule(message.schedule());
    case proto::CoordinatorMessage::kCommunicator:
      return epoch_->communicators().OnCommunicator(message.communicator());
    case proto::CoordinatorMessage::kCommunicatorId:
      return epoch_->communicators().OnId(message.communicator_id());
    case proto::CoordinatorMessage::kNotice:
      OnNotice(message.notice());
      break;
    case proto::CoordinatorMessage::kConfirmBlocked:
      epoch_->watch().OnConfirmBlocked(message.confirm_blocked().round());
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

void ExecutorCore::OnNotice(const proto::Notice& notice) {
  auto line = session::Make<session::Notice>();
  session::SetText(line.text, notice.text());
  uint64_t here = 0;
  for (const auto& [local, m] : members_.members())
    here |= uint64_t{1} << local;
  const int to = static_cast<int>(epoch_->watch().RankToTell(here));
  actions_.push_back(ReplyClient{members_.members().at(to).client, line});
}

void ExecutorCore::OnRankLeftElsewhere(uint64_t epoch,
                                       const proto::RankLeft& left) {
  if (!epoch_ || epoch != epoch_->info().epoch) return;
  if (starting() && !drains()) return;
  std::vector<std::pair<int, std::string>> ranks = {
      {static_cast<int>(left.rank()), left.message()}};
  for (const uint32_t other : left.others()) {
    const int rank = static_cast<int>(other);
    ranks.emplace_back(rank, epoch_->left().Text(rank));
  }
  for (const auto& [rank, text] : ranks) {
    if (phase_ == Phase::kRunning && members_.FindRank(rank) != nullptr) {
      continue;
    }
    if (absl::Status s = epoch_->OnRankLeft(rank, -1, text); !s.ok()) {
      return FailEpochHere(s);
    }
  }
  if (drains() && epoch_->left().Live() == 0) ForgetEpoch();
}

bool ExecutorCore::KeptForLater(const proto::CoordinatorMessage& message) {
  if (!starting() || epoch_number() == 0) return false;
  if (message.epoch() != epoch_number()) return false;
  early_.push_back(message);
  return true;
}

void ExecutorCore::OnMembershipWanted(
    const proto::CoordinatorMessage& message) {
  if (message.epoch() != epoch_number() || epoch_number() == 0) return;
  const proto::MembershipWanted& wanted = message.membership_wanted();
  if (starting()) {
    early_.push_back(message);
  } else if (phase_ == Phase::kRunning) {
    actions_.push_back(WantChange{wanted.new_ranks() + wanted.leaving()});
  }
}

void ExecutorCore::OnEpochEnd(uint64_t epoch, const proto::EpochEnd& end) {
  const absl::Status why = ReasonOf(end);
  if (epoch != 0 && epoch == last_epoch_.epoch()) last_epoch_.End(why);
  const bool nobody = members_.empty() && gathering_.ranks().empty();
  if (epoch == 0 && (gathering_.elastic() || members_.elastic() ||
                     (nobody && gathering_.reported_elastic()))) {
    return gathering_.Refuse(end);
  }
  if (phase_ == Phase::kReady && epoch_ && epoch == epoch_->info().epoch) {
    return ForgetEpoch();  // the previous epoch, which was draining
  }
  if (epoch == 0 && phase_ == Phase::kIdle) {
    if (gathering_.ranks().empty()) return;
    // Withdraw ranks that were reported meanwhile; they are refused as well.
    gathering_.Withdraw();
    gathering_.Refuse(why);
  } else if (starting()) {
    // Epoch 0 means that the start has failed before an epoch had a number.
    if (epoch == 0 || epoch == epoch_number()) {
      if (members_.elastic()) return WaitAgain(why);
      if (phase_ == Phase::kReady) gathering_.Withdraw();
      FailStart(why);
    }
  } else if (epoch == epoch_number() && phase_ == Phase::kRunning) {
    FailEpoch(why);
  } else if (epoch == epoch_number() && phase_ == Phase::kIdle) {
    ForgetEpoch();
  }
}

// --- The link to the coordinator ---------------------------------------------

void ExecutorCore::OnPresenceAcknowledged() {
  if (phase_ == Phase::kRunning) epoch_->OnPresenceAcknowledged();
}

void ExecutorCore::OnCoordinatorAway(const absl::Status& status) {
  link_.OnAway(status);
}

void ExecutorCore::OnCoordinatorBack() { link_.OnBack(); }

bool ExecutorCore::WaitsForCoordinator() const {
  if (phase_ == Phase::kRunning) return epoch_->WaitsForCoordinator();
  if (phase_ == Phase::kReady || phase_ == Phase::kPreparing) return true;
  return gathering_.elastic() || (clients() == 0 && owes_report());
}

void ExecutorCore::OnCoordinatorReplaced() {
  gathering_.OnCoordinatorReplaced();
  if (epoch_) epoch_->OnCoordinatorReplaced();
  proto::ExecutorMessage message;
  FillState(message.mutable_node_state());
  link_.OnReplaced(std::move(message));
}

void ExecutorCore::FillState(proto::NodeState* state) const {
  if (!last_epoch_.FillState(state)) return;
  const bool here = epoch_ && epoch_->info().epoch == last_epoch_.epoch();
  if (here) {
    epoch_->FillState(state);
  } else {
    state->mutable_end();
  }
}

// Repeats all reports as if for the first time. The ranks that have gone come
// before the end of the epoch, because they are the better reason for it.
void ExecutorCore::OnRecovered(uint64_t epoch,
                               const proto::Recovered& recovered) {
  if (!link_.OnRecovered()) return;
  if (epoch_ && epoch_->info().epoch == epoch) epoch_->watch().CountHandled();
  for (const proto::ExecutorMessage& gone : last_epoch_.gone())
    link_.Send(gone);
  if (last_epoch_.end()) SendFailed(last_epoch_.epoch(), *last_epoch_.end());
  if (last_epoch_.endpoint() &&
      (recovered.endpoints() || phase_ == Phase::kPreparing)) {
    link_.Send(*last_epoch_.endpoint());
  }
  if (gathering_.elastic() || gathering_.reported_elastic()) {
    gathering_.ReportElastic();
  } else if (phase_ == Phase::kReady) {
    gathering_.ReportReady(members_);
  } else if (phase_ == Phase::kIdle && !gathering_.ranks().empty()) {
    gathering_.ReportWaiting();
  }
  if (epoch_ && phase_ != Phase::kEnded) epoch_->OnRecovered(recovered);
}

void ExecutorCore::OnLinkLost(const absl::Status& status) {
  link_.OnLost();
  // First refuse the ranks that wait for the next epoch: no link would be
  // opened for them.
  gathering_.Refuse(status);
  if (phase_ == Phase::kRunning) {
    FailEpoch(status);
  } else if (starting()) {
    FailStart(status);
  }
  if (phase_ == Phase::kIdle) ForgetEpoch();
}

// --- Ends --------------------------------------------------------------------

void ExecutorCore::SendFailed(uint64_t epoch, const absl::Status& status) {
  proto::ExecutorMessage message;
  message.set_epoch(epoch);
  proto::ExecutorFailed* failed = message.mutable_failed();
  failed->set_code(static_cast<int>(status.code()));
  failed->set_message(std::string(status.message()));
  link_.Send(std::move(message));
}

void ExecutorCore::AwaitCause(absl::Status failure) {
  if (give_up_ms_) return;
  network_failure_ = std::move(failure);
  give_up_ms_ = now_ms_ + options_.resume_timeout_ms + kBackendGraceMs;
}

void ExecutorCore::GiveUpNetwork() {
  give_up_ms_.reset();
  // The executor of a node whose ranks have left may end, or be lost, unless
  // ranks of this node still wait for its data.
  const bool needed =
      epoch_->left().Live() > members_.members().size() || epoch_->InRun();
  if (!needed) return;
  if (link_.away()) {
    network_failure_ = absl::Status(
        network_failure_.code(),
        absl::StrCat(network_failure_.message(),
                     "; nobody can say why: ", link_.away()->message()));
  }
  FailEpochHere(network_failure_);
}

void ExecutorCore::FailEpoch(const absl::Status& why) {
  give_up_ms_.reset();
  epoch_->names().RefuseWaiting(why, members_);
  phase_ = Phase::kEnded;
  last_epoch_.End(why);
  abort_ = why;
  const Status status = FromAbsl(why);
  actions_.push_back(AbortBoard{status.code(), status.message()});
}

void ExecutorCore::FailEpochHere(const absl::Status& why) {
  give_up_ms_.reset();
  if (phase_ != Phase::kRunning) return;
  SendFailed(epoch_number(), why);
  FailEpoch(why);
}

void ExecutorCore::OnStop(const std::string& text) {
  const absl::Status why = absl::AbortedError(text);
  gathering_.Refuse(why);
  if (phase_ == Phase::kRunning) {
    FailEpochHere(why);
  } else if (starting()) {
    SendFailed(epoch_number(), why);
    FailStart(why);
  }
}

}  // namespace maypole::worker
