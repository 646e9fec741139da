#include "worker/core/executor_core.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"

namespace maypole::worker {

Code ExecutorCore::CodeOf(int code) {
  return code > 0 && code <= 16 ? static_cast<Code>(code) : Code::kAborted;
}

std::string ExecutorCore::TextOf(const proto::EpochEnd& end) {
  if (!end.message().empty()) return end.message();
  return "the coordinator ended the epoch without giving a reason";
}

std::string ExecutorCore::RankText(const LocalMember& m) const {
  return absl::StrCat("rank ", m.rank, " (pid ", m.pid, ", host ",
                      m.host.empty() ? options_.host : m.host, ", node ",
                      options_.node, ")");
}

void ExecutorCore::Send(proto::ExecutorMessage message) {
  if (!link_open_ || recovering_) return;
  actions_.push_back(SendToCoordinator{std::move(message)});
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
  if (message.epoch() == start_.epoch() && start_.epoch() != 0) {
    gone_.push_back(message);
  }
  Send(std::move(message));
}

void ExecutorCore::SendFailed(uint64_t epoch, const absl::Status& status) {
  proto::ExecutorMessage message;
  message.set_epoch(epoch);
  proto::ExecutorFailed* failed = message.mutable_failed();
  failed->set_code(static_cast<int>(status.code()));
  failed->set_message(std::string(status.message()));
  Send(std::move(message));
}

void ExecutorCore::Refuse(Membership* membership, Code code,
                          const std::string& text) {
  for (const auto& [local, m] : membership->members()) {
    actions_.push_back(RefuseClient{m.client, code, text});
  }
  *membership = Membership();
}

// --- Time --------------------------------------------------------------------

void ExecutorCore::OnTime(int64_t now_ms) {
  now_ms_ = now_ms;
  CheckCoordinator();
  if (give_up_ms_ && now_ms >= *give_up_ms_) GiveUpNetwork();
  if (phase_ == Phase::kRunning) {
    if (absl::Status s = epoch_->OnTime(now_ms); !s.ok()) FailEpochHere(s);
    if (stats_watch_.Due(now_ms)) actions_.push_back(SendStats{epoch_number()});
  }
  const int64_t start_timeout_ms =
      gathering_.StartTimeoutMs(options_.start_timeout_ms);
  if (!gathering_.empty() && !gathering_.complete() &&
      now_ms - gathering_since_ms_ >= start_timeout_ms + kStartGraceMs) {
    WithdrawWaiting();
    Refuse(&gathering_, Code::kDeadlineExceeded,
           absl::StrCat("job '", options_.job, "' cannot start: ",
                        gathering_.MissingText(), " on node ", options_.node,
                        " (host ", options_.host, ") within ",
                        static_cast<double>(start_timeout_ms) / 1000, " s"));
  }
  EndWatches(
      [&](const Returning& r) { return r.until_ms && now_ms >= *r.until_ms; });
  if (clients() > 0 || epoch_) {  // other nodes use an epoch that drains
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

// --- Clients -----------------------------------------------------------------

void ExecutorCore::OnClient(ClientId client, const session::Hello& hello,
                            int visible_pid) {
  absl::Status status;
  if (hello.elastic != 0) {
    status = AdmitElastic(client, hello, visible_pid);
  } else if (members_.elastic()) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "rank ", hello.rank, " is not elastic, but job '", options_.job,
        "' is running with elastic ranks; start all ranks of a job alike"));
  } else if (const LocalMember* m = members_.FindRank(hello.rank)) {
    status = absl::AlreadyExistsError(
        absl::StrCat("rank ", hello.rank, " of job '", options_.job,
                     "' is connected already (pid ", m->pid,
                     "); was the job started twice with one MAYPOLE_JOB?"));
  } else {
    status = gathering_.Add(client, hello, visible_pid);
  }
  if (!status.ok()) {
    actions_.push_back(RefuseClient{client, CodeOf(status.raw_code()),
                                    std::string(status.message())});
    return;
  }
  if (gathering_.members().size() == 1) gathering_since_ms_ = now_ms_;
  if (!link_open_) {
    link_open_ = true;
    round_ = 0;
    told_of_elastic_ = false;
    actions_.push_back(OpenLink{});
  }
  if (gathering_.elastic()) return SayWaiting();
  BeginIfComplete();
}

const LocalMember* ExecutorCore::RunningMember(ClientId client) const {
  return phase_ == Phase::kRunning ? members_.Find(client) : nullptr;
}

template <typename Reply>
void ExecutorCore::ReplyNoEpoch(ClientId client, Reply reply) {
  const bool aborted =
      members_.Find(client) != nullptr && phase_ == Phase::kEnded;
  reply.code =
      static_cast<uint32_t>(aborted ? abort_code_ : Code::kFailedPrecondition);
  session::SetText(reply.text, aborted ? abort_text_ : "no epoch is running");
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
  const LocalMember* m = RunningMember(client);
  if (m == nullptr) return;
  if (absl::Status s = epoch_->names().OnReturn(*m, answer); !s.ok()) {
    FailEpochHere(s);
  }
}

void ExecutorCore::OnSetRequest(ClientId client,
                                const session::SetRequest& request) {
  if (const LocalMember* m = RunningMember(client)) {
    const absl::Status s = epoch_->OnSetRequest(*m, request);
    if (!s.ok()) FailEpochHere(s);
    return;
  }
  auto reply = session::Make<session::SetReply>();
  reply.number = request.number;
  ReplyNoEpoch(client, reply);
}

void ExecutorCore::OnJoinRequest(ClientId client,
                                 const session::JoinRequest& request) {
  if (const LocalMember* m = RunningMember(client)) {
    const absl::Status s = epoch_->OnJoinRequest(*m, request);
    if (!s.ok()) FailEpochHere(s);
    return;
  }
  auto reply = session::Make<session::JoinReply>();
  reply.number = request.number;
  ReplyNoEpoch(client, reply);
}

void ExecutorCore::OnGpuMemoryRequest(
    ClientId client, const session::GpuMemoryRequest& request) {
  const LocalMember* m = RunningMember(client);
  if (m == nullptr) return;  // its epoch is over, and it knows that
  const absl::Status s = epoch_->memories().OnRequest(*m, request);
  if (!s.ok()) FailEpochHere(s);
}

void ExecutorCore::OnResultRecords(ClientId client,
                                   const session::ResultRecords& records) {
  const LocalMember* m = RunningMember(client);
  if (m == nullptr) return;  // its epoch is over
  const absl::Status s = epoch_->results().OnRecords(*m, records);
  if (!s.ok()) FailEpochHere(s);
}

void ExecutorCore::OnGoodbye(ClientId client, uint32_t pending, bool returns) {
  const LocalMember* found = members_.Find(client);
  // A process that cannot be watched is not expected back.
  const bool watched = found != nullptr && found->elastic &&
                       found->visible_pid > 0 && epoch_number() > 0;
  returns = returns && watched;
  if (returns || (watched && found->finished)) KeepWatch(*found, returns);
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
  } else if (gathering_.Find(client) != nullptr) {
    LeaveGathering(client);
  }
}

void ExecutorCore::OnClientGone(ClientId client, const std::string& how) {
  if (const LocalMember* found = members_.Find(client)) {
    const LocalMember m = *found;
    members_.Remove(client);
    MemberGone(m, false, absl::StrCat("died: ", how), how);
  } else if (gathering_.Find(client) != nullptr) {
    LeaveGathering(client);
  }
}

void ExecutorCore::LeaveGathering(ClientId client) {
  const bool elastic = gathering_.elastic();
  gathering_.Remove(client);
  if (elastic) return SayWaiting();
  if (phase_ == Phase::kIdle) SendWaiting(gathering_);
}

void ExecutorCore::MemberGone(const LocalMember& m, bool clean,
                              const std::string& what, const std::string& how,
                              bool returns) {
  if (starting() && m.elastic) {
    SendRankGone(m, false, how);
    return WaitAgain();
  }
  if (starting()) {
    SendRankGone(m, false, how);
    FailStart(Code::kAborted,
              absl::StrCat("the job cannot start: ", RankText(m), " ", what));
  } else if (phase_ == Phase::kRunning && clean) {
    // Before the coordinator ends an epoch that all ranks have left.
    epoch_->results().OnNoMore(static_cast<uint32_t>(m.local_rank));
    SendRankGone(m, true, "has shut down", returns);
    const absl::Status s = epoch_->OnRankLeft(
        m.rank, m.local_rank,
        absl::StrCat(RankText(m),
                     " has shut down; operations that need it cannot run"));
    if (!s.ok()) FailEpochHere(s);
  } else if (phase_ == Phase::kRunning) {
    SendRankGone(m, false, how, returns);
    FailEpoch(Code::kAborted, absl::StrCat(RankText(m), " ", what));
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
    epoch_.reset();
    actions_.push_back(DropEpoch{});
    phase_ = Phase::kIdle;
  } else if (phase_ == Phase::kRunning) {
    phase_ = Phase::kIdle;
    give_up_ms_.reset();
    if (epoch_->left().Live() == 0) {
      epoch_.reset();
      actions_.push_back(DropEpoch{});
    }
  }
  BeginIfComplete();
}

std::vector<std::string> ExecutorCore::NodeNames() const {
  std::vector<std::string> names;
  if (!epoch_) return names;
  for (const proto::NodeInfo& node : epoch_->info().nodes) {
    names.push_back(node.node());
  }
  return names;
}

// --- Running -----------------------------------------------------------------

void ExecutorCore::OnReadySlot(const ReadySlot& ready) {
  if (phase_ != Phase::kRunning) return;
  if (absl::Status s = epoch_->OnReadySlot(ready); !s.ok()) FailEpochHere(s);
}

void ExecutorCore::OnIdleSlots(const std::vector<IdleSlot>& idle) {
  if (phase_ == Phase::kRunning) epoch_->names().OnIdleSlots(idle);
}

void ExecutorCore::OnSlotFreed(uint32_t slot, uint32_t first) {
  if (phase_ != Phase::kRunning) return;
  if (absl::Status s = epoch_->names().OnFreed(slot, first); !s.ok()) {
    FailEpochHere(s);
  }
}

void ExecutorCore::OnSnapshot(const BoardSnapshot& snapshot) {
  if (phase_ != Phase::kRunning) return;
  if (const auto frozen = epoch_->watch().OnSnapshot(now_ms_, snapshot))
    Expel(*frozen);
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
  FailEpoch(Code::kAborted, absl::StrCat(RankText(m), " ", frozen.what));
  AfterMemberGone();
}

void ExecutorCore::OnRunFree(uint32_t record) {
  if (phase_ == Phase::kRunning) epoch_->OnRunFree(record);
}

void ExecutorCore::OnGpuMemoryOpened(
    GpuMemoryId id, const absl::StatusOr<OpenedGpuMemory>& opened) {
  if (phase_ == Phase::kRunning) epoch_->memories().OnOpened(id, opened);
}

void ExecutorCore::OnCommunicatorIdMade(uint32_t number,
                                        const absl::StatusOr<std::string>& id) {
  if (phase_ != Phase::kRunning) return;
  const absl::Status s = epoch_->communicators().OnIdMade(number, id);
  if (!s.ok()) FailEpochHere(s);
}

void ExecutorCore::OnGpuRunEnded(const GpuRun& run,
                                 const absl::Status& status) {
  if (phase_ != Phase::kRunning) return;
  const absl::Status s = epoch_->gpu_runs().OnEnded(run, status);
  if (s.ok()) return;
  // NCCL says that GPUs of other nodes are lost, but not why. Then all runs
  // here fail, also those of this node alone.
  if (absl::IsUnavailable(s) && epoch_->info().several_nodes()) {
    return AwaitCause(s);
  }
  FailEpochHere(s);
}

void ExecutorCore::OnPresenceAcknowledged() {
  if (phase_ == Phase::kRunning) epoch_->OnPresenceAcknowledged();
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
  if (message.has_below_ready()) return OnRelaysReady(node);
  if (message.has_relayed()) return OnRelayed(message.relayed());
  if (phase_ != Phase::kRunning && !drains()) return;
  const absl::Status s = epoch_->OnPeerMessage(node, message);
  if (!s.ok() && phase_ == Phase::kRunning) FailEpochHere(s);
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
  if (away_) {
    network_failure_ =
        absl::Status(network_failure_.code(),
                     absl::StrCat(network_failure_.message(),
                                  "; nobody can say why: ", away_->message()));
  }
  FailEpochHere(network_failure_);
}

void ExecutorCore::OnBoardFull(const absl::Status& status) {
  FailEpochHere(absl::Status(
      status.code(), absl::StrCat("node ", options_.node, " (host ",
                                  options_.host, "): ", status.message())));
}

void ExecutorCore::FailEpoch(Code code, const std::string& text) {
  give_up_ms_.reset();
  epoch_->names().RefuseWaiting(code, text, members_);
  phase_ = Phase::kEnded;
  NoteEnd(code, text);
  abort_code_ = code;
  abort_text_ = text;
  actions_.push_back(AbortBoard{code, text});
}

void ExecutorCore::FailEpochHere(const absl::Status& status) {
  give_up_ms_.reset();
  if (phase_ != Phase::kRunning) return;
  SendFailed(epoch_number(), status);
  FailEpoch(CodeOf(status.raw_code()), std::string(status.message()));
}

// --- The link --------------------------------------------------------------

void ExecutorCore::OnLinkLost(const absl::Status& status) {
  link_open_ = false;
  recovering_ = false;
  OnCoordinatorBack();
  const Code code = CodeOf(status.raw_code());
  const std::string text(status.message());
  // First refuse those that wait for the next epoch: no link would be opened
  // for them.
  Refuse(&gathering_, code, text);
  if (phase_ == Phase::kRunning) {
    FailEpoch(code, text);
  } else if (starting()) {
    FailStart(code, text);
  }
  if (phase_ == Phase::kIdle) ForgetEpoch();
}

void ExecutorCore::OnStop(const std::string& text) {
  Refuse(&gathering_, Code::kAborted, text);
  if (phase_ == Phase::kRunning) {
    SendFailed(epoch_number(), absl::AbortedError(text));
    FailEpoch(Code::kAborted, text);
  } else if (starting()) {
    SendFailed(epoch_number(), absl::AbortedError(text));
    FailStart(Code::kAborted, text);
  }
}

}  // namespace maypole::worker
