#include "worker/core/core.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"

namespace maypole::worker {

Code Core::CodeOf(int code) {
  return code > 0 && code <= 16 ? static_cast<Code>(code) : Code::kAborted;
}

std::string Core::TextOf(const proto::EpochEnd& end) {
  if (!end.message().empty()) return end.message();
  return absl::StrCat("the coordinator ended epoch ", end.epoch(),
                      " without giving a reason");
}

std::string Core::RankText(const Member& m) const {
  return absl::StrCat("rank ", m.rank, " (pid ", m.pid, ", host ",
                      m.host.empty() ? options_.host : m.host, ", node ",
                      options_.node, ")");
}

void Core::Send(proto::ExecutorMessage message) {
  if (link_open_) actions_.push_back(SendToCoordinator{std::move(message)});
}

void Core::SendRankGone(int rank, bool clean, const std::string& how,
                        bool returns) {
  proto::ExecutorMessage message;
  proto::RankGone* gone = message.mutable_rank_gone();
  gone->set_epoch(epoch_number());
  gone->set_rank(static_cast<uint32_t>(rank));
  gone->set_clean(clean);
  gone->set_how(how);
  gone->set_returns(returns);
  Send(std::move(message));
}

void Core::SendFailed(uint64_t epoch, const absl::Status& status) {
  proto::ExecutorMessage message;
  proto::ExecutorFailed* failed = message.mutable_failed();
  failed->set_epoch(epoch);
  failed->set_code(static_cast<int>(status.code()));
  failed->set_message(std::string(status.message()));
  Send(std::move(message));
}

void Core::Refuse(Membership* membership, Code code, const std::string& text) {
  for (const auto& [local, m] : membership->members()) {
    actions_.push_back(RefuseClient{m.client, code, text});
  }
  *membership = Membership();
}

// --- Time --------------------------------------------------------------------

void Core::OnTime(int64_t now_ms) {
  now_ms_ = now_ms;
  if (give_up_ms_ && now_ms >= *give_up_ms_) FailEpochHere(network_failure_);
  const int64_t start_timeout_ms =
      gathering_.StartTimeoutMs(options_.start_timeout_ms);
  if (!gathering_.empty() && !gathering_.complete() &&
      now_ms - gathering_since_ms_ >= start_timeout_ms + kStartGraceMs) {
    SendWaiting(Membership());
    Refuse(&gathering_, Code::kDeadlineExceeded,
           absl::StrCat("job '", options_.job, "' cannot start: ",
                        gathering_.MissingText(), " on node ", options_.node,
                        " (host ", options_.host, ") within ",
                        static_cast<double>(start_timeout_ms) / 1000, " s"));
  }
  std::erase_if(returning_, [&](const auto& r) {
    return now_ms - r.second.since_ms >= options_.start_timeout_ms;
  });
  if (clients() > 0) {
    idle_since_ms_ = idle_told_ms_ = now_ms;
  } else if (now_ms - idle_since_ms_ >= kIdleMs &&
             now_ms - idle_told_ms_ >= kIdleMs / 10) {
    idle_told_ms_ = now_ms;
    actions_.push_back(ReportIdle{});
  }
}

// --- Clients -----------------------------------------------------------------

void Core::OnClient(ClientId client, const session::Hello& hello,
                    int visible_pid) {
  absl::Status status;
  if (hello.elastic != 0) {
    status = AdmitElastic(client, hello, visible_pid);
  } else if (members_.elastic()) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "rank ", hello.rank, " is not elastic, job '", options_.job,
        "' is running with ranks that are; start all ranks of a job alike"));
  } else if (const Member* m = members_.FindRank(hello.rank)) {
    status = absl::AlreadyExistsError(
        absl::StrCat("rank ", hello.rank, " of job '", options_.job,
                     "' is connected already (pid ", m->pid,
                     "); is the job started twice with one MAYPOLE_JOB?"));
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
    actions_.push_back(OpenLink{});
  }
  if (gathering_.elastic()) return SayWaiting();
  BeginIfComplete();
}

void Core::BeginIfComplete() {
  if (phase_ != Phase::kIdle || gathering_.elastic()) return;
  if (!gathering_.complete()) {
    if (!gathering_.empty()) SendWaiting(gathering_);
    return;
  }
  members_ = std::exchange(gathering_, Membership());
  phase_ = Phase::kReady;
  proto::ExecutorMessage message;
  proto::RanksReady* ready = message.mutable_ranks_ready();
  ready->set_size(static_cast<uint32_t>(members_.size()));
  for (const auto& [local, m] : members_.members()) {
    ready->add_ranks(static_cast<uint32_t>(m.rank));
    ready->add_pids(m.pid);
  }
  AddFacts(members_, ready);
  Send(std::move(message));
}

void Core::AddFacts(const Membership& membership, proto::RanksReady* ready) {
  ready->set_chunk_bytes(options_.chunk_bytes);
  ready->set_stall_check_ms(-1);
  ready->set_stall_shutdown_ms(-1);
  ready->set_start_timeout_ms(membership.StartTimeoutMs(0));
  bool said = false;
  for (const auto& [local, m] : membership.members()) {
    if (ready->stall_check_ms() < 0)
      ready->set_stall_check_ms(m.stall_check_ms);
    if (ready->stall_shutdown_ms() < 0) {
      ready->set_stall_shutdown_ms(m.stall_shutdown_ms);
    }
    ready->add_fusion_thresholds(m.fusion_threshold);
    said = said || m.fusion_threshold >= 0;
  }
  if (!said) ready->clear_fusion_thresholds();
}

void Core::SendWaiting(const Membership& waiting) {
  proto::ExecutorMessage message;
  proto::RanksWaiting* w = message.mutable_ranks_waiting();
  w->set_size(static_cast<uint32_t>(waiting.size()));
  w->set_local_size(static_cast<uint32_t>(waiting.local_size()));
  w->set_start_timeout_ms(waiting.StartTimeoutMs(0));
  for (const auto& [local, m] : waiting.members()) {
    w->add_ranks(static_cast<uint32_t>(m.rank));
  }
  Send(std::move(message));
}

const Member* Core::RunningMember(ClientId client) const {
  return phase_ == Phase::kRunning ? members_.Find(client) : nullptr;
}

template <typename Reply>
void Core::ReplyNoEpoch(ClientId client, Reply reply) {
  const bool aborted =
      members_.Find(client) != nullptr && phase_ == Phase::kEnded;
  reply.code =
      static_cast<uint32_t>(aborted ? abort_code_ : Code::kFailedPrecondition);
  session::SetText(reply.text, aborted ? abort_text_ : "no epoch is running");
  actions_.push_back(ReplyClient{client, reply});
}

void Core::OnSlotRequest(ClientId client, const session::SlotRequest& request) {
  if (const Member* m = RunningMember(client)) {
    return epoch_->OnSlotRequest(*m, request);
  }
  auto reply = session::Make<session::SlotReply>();
  reply.request = request.request;
  ReplyNoEpoch(client, reply);
}

void Core::OnSetRequest(ClientId client, const session::SetRequest& request) {
  if (const Member* m = RunningMember(client)) {
    const absl::Status s = epoch_->OnSetRequest(*m, request);
    if (!s.ok()) FailEpochHere(s);
    return;
  }
  auto reply = session::Make<session::SetReply>();
  reply.number = request.number;
  ReplyNoEpoch(client, reply);
}

void Core::OnJoinRequest(ClientId client, const session::JoinRequest& request) {
  if (const Member* m = RunningMember(client)) {
    const absl::Status s = epoch_->OnJoinRequest(*m, request);
    if (!s.ok()) FailEpochHere(s);
    return;
  }
  auto reply = session::Make<session::JoinReply>();
  reply.number = request.number;
  ReplyNoEpoch(client, reply);
}

void Core::OnGoodbye(ClientId client, uint32_t pending, bool returns) {
  const Member* found = members_.Find(client);
  // Who cannot be watched is not waited for.
  returns = returns && found != nullptr && found->elastic &&
            found->visible_pid > 0 && epoch_number() > 0;
  if (returns) KeepWatch(*found);
  actions_.push_back(CloseClient{client});
  if (found != nullptr) {
    const Member m = *found;
    members_.Remove(client);
    const std::string what =
        absl::StrCat("has shut down with ", pending,
                     pending == 1 ? " operation" : " operations", " pending",
                     phase_ == Phase::kRunning ? epoch_->AfterText() : "");
    MemberGone(m, pending == 0, what, absl::StrCat("it ", what), returns);
  } else if (gathering_.Find(client) != nullptr) {
    LeaveGathering(client);
  }
}

void Core::OnClientGone(ClientId client, const std::string& how) {
  if (const Member* found = members_.Find(client)) {
    const Member m = *found;
    members_.Remove(client);
    MemberGone(m, false, absl::StrCat("died: ", how), how);
  } else if (gathering_.Find(client) != nullptr) {
    LeaveGathering(client);
  }
}

void Core::LeaveGathering(ClientId client) {
  const bool elastic = gathering_.elastic();
  gathering_.Remove(client);
  if (elastic) return SayWaiting();
  if (phase_ == Phase::kIdle) SendWaiting(gathering_);
}

void Core::MemberGone(const Member& m, bool clean, const std::string& what,
                      const std::string& how, bool returns) {
  if (starting() && m.elastic) {
    SendRankGone(m.rank, false, how);
    return WaitAgain();
  }
  if (starting()) {
    SendRankGone(m.rank, false, how);
    FailStart(Code::kAborted,
              absl::StrCat("the job cannot start: ", RankText(m), " ", what));
  } else if (phase_ == Phase::kRunning && clean) {
    SendRankGone(m.rank, true, "has shut down", returns);
    epoch_->OnRankLeft(m.rank, m.local_rank,
                       absl::StrCat(RankText(m),
                                    " has shut down; operations that need it "
                                    "cannot run"));
  } else if (phase_ == Phase::kRunning) {
    SendRankGone(m.rank, false, how, returns);
    FailEpoch(Code::kAborted, absl::StrCat(RankText(m), " ", what));
  } else if (phase_ == Phase::kEnded && m.elastic) {
    // Who may come back, and who not, decides when the next epoch starts.
    SendRankGone(m.rank, clean, how, returns);
  }
  if (phase_ != Phase::kRunning && !members_.empty()) {
    actions_.push_back(MarkGone{m.local_rank});
  }
  AfterMemberGone();
}

void Core::AfterMemberGone() {
  if (!members_.empty()) return;
  if (phase_ == Phase::kEnded) {
    epoch_.reset();
    actions_.push_back(DropEpoch{});
    phase_ = Phase::kIdle;
  } else if (phase_ == Phase::kRunning) {
    phase_ = Phase::kIdle;
    give_up_ms_.reset();
    if (epoch_->AllHaveLeft()) {
      epoch_.reset();
      actions_.push_back(DropEpoch{});
    }
  }
  BeginIfComplete();
}

// --- Start -------------------------------------------------------------------

void Core::OnEpochStart(const proto::EpochStart& start) {
  const bool elastic = !start.clients().empty();
  if (elastic && !TakeIn(start)) return;
  // The last that waited may have gone while this was on its way, and what we
  // said then was of the round before.
  if (elastic && gathering_.empty()) SayWaiting();
  if (phase_ != Phase::kReady) return;          // crossed with our RankGone
  if (epoch_) actions_.push_back(DropEpoch{});  // drained by now
  epoch_.reset();
  std::vector<int> ranks;
  for (const auto& [local, m] : members_.members()) ranks.push_back(m.rank);
  absl::StatusOr<EpochInfo> info = ReadEpochStart(start, ranks);
  if (!info.ok()) {
    SendFailed(start.epoch(), info.status());
    return FailStart(Code::kInternal, std::string(info.status().message()));
  }
  early_.clear();
  epoch_.emplace(*info, options_.slots, options_.records,
                 options_.frozen_timeout_ms, &actions_);
  epoch_->CountHandled();
  if (!info->several_nodes()) return MakeBoard();
  phase_ = Phase::kPreparing;
  PrepareBackend prepare{info->epoch, info->node_index, {}, {}};
  for (uint32_t i = 0; i < info->nodes.size(); ++i) {
    prepare.node_names.push_back(info->NodeText(i));
    prepare.node_addresses.push_back(info->nodes[i].address());
  }
  actions_.push_back(std::move(prepare));
}

void Core::OnBackendPrepared(
    const absl::StatusOr<std::vector<std::string>>& addresses) {
  if (phase_ != Phase::kPreparing) return;
  if (!addresses.ok()) {
    return StartFailedHere(addresses.status());
  }
  proto::ExecutorMessage message;
  message.mutable_endpoint()->set_epoch(epoch_number());
  for (const std::string& a : *addresses) {
    message.mutable_endpoint()->add_addresses(a);
  }
  Send(std::move(message));
}

void Core::OnEndpoints(const proto::Endpoints& endpoints) {
  if (phase_ != Phase::kPreparing || endpoints.epoch() != epoch_number()) {
    return;
  }
  epoch_->CountHandled();
  phase_ = Phase::kConnecting;
  actions_.push_back(ConnectBackend{
      {endpoints.addresses().begin(), endpoints.addresses().end()}});
}

void Core::OnBackendConnected(const absl::Status& status) {
  if (phase_ != Phase::kConnecting) return;
  if (status.ok()) return MakeBoard();
  StartFailedHere(status);
}

void Core::MakeBoard() {
  phase_ = Phase::kCreating;
  const EpochInfo& info = epoch_->info();
  CreateBoard create;
  create.config.epoch = info.epoch;
  create.config.size = static_cast<uint32_t>(info.size);
  create.config.local_size = static_cast<uint32_t>(members_.local_size());
  create.config.nodes = static_cast<uint32_t>(info.nodes.size());
  create.config.node_index = info.node_index;
  create.config.slots = options_.slots;
  create.config.runs = options_.records;
  create.config.chunk_bytes = options_.chunk_bytes;
  create.config.ring_depth = options_.ring_depth;
  create.config.arena_bytes = options_.arena_bytes;
  for (const auto& [local, m] : members_.members()) {
    create.config.global_rank[local] = m.rank;
    create.clients.push_back(m.client);
    create.pids.push_back(m.visible_pid);
  }
  actions_.push_back(std::move(create));
}

bool Core::OnBoardCreated(const absl::Status& status) {
  if (phase_ != Phase::kCreating) return false;
  if (status.ok()) {
    phase_ = Phase::kRunning;
    failed_starts_ = 0;
    for (const auto& m : std::exchange(early_, {})) OnCoordinator(m);
    return true;
  }
  const std::string text =
      absl::StrCat("node ", options_.node, " (host ", options_.host,
                   ") cannot make the job's shared memory: ", status.message());
  SendFailed(epoch_number(), absl::Status(status.code(), text));
  FailStart(CodeOf(status.raw_code()), text);
  return false;
}

void Core::FailStart(Code code, const std::string& text) {
  if (members_.elastic() && epoch_number() > 0) {
    for (const auto& [local, m] : members_.members()) {
      SendRankGone(m.rank, false, "it was refused");
    }
  }
  Refuse(&members_, code, text);
  // Before EpochStart epoch_ is the one before, still draining: others may be
  // receiving what our backend has sent.
  const bool draining = phase_ == Phase::kReady;
  phase_ = Phase::kIdle;
  if (!draining) ForgetEpoch();
  BeginIfComplete();
}

void Core::ForgetEpoch() {
  if (epoch_) actions_.push_back(DropEpoch{});
  epoch_.reset();
}

// --- Running -----------------------------------------------------------------

void Core::OnNews(const SlotNews& news) {
  if (phase_ != Phase::kRunning) return;
  if (absl::Status s = epoch_->OnNews(news); !s.ok()) FailEpochHere(s);
}

void Core::OnLook(const BoardLook& look) {
  if (phase_ != Phase::kRunning) return;
  if (const auto frozen = epoch_->OnLook(now_ms_, look)) Expel(*frozen);
}

// Its process lives, and may yet write to other ranks' memory: it is not marked
// as gone.
void Core::Expel(const Epoch::Frozen& frozen) {
  const auto it = members_.members().find(static_cast<int>(frozen.local));
  if (it == members_.members().end()) return;
  const Member m = it->second;
  members_.Remove(m.client);
  actions_.push_back(CloseClient{m.client});
  SendRankGone(m.rank, false, absl::StrCat("it ", frozen.what));
  FailEpoch(Code::kAborted, absl::StrCat(RankText(m), " ", frozen.what));
  AfterMemberGone();
}

void Core::OnRunFree(uint32_t record) {
  if (phase_ == Phase::kRunning) epoch_->OnRunFree(record);
}

void Core::OnPresenceAcknowledged() {
  if (phase_ == Phase::kRunning) epoch_->OnPresenceAcknowledged();
}

void Core::OnNetworkFailed(const absl::Status& status) {
  if (phase_ != Phase::kRunning || give_up_ms_) return;
  network_failure_ = absl::Status(
      status.code(),
      absl::StrCat("the network between nodes failed on node ", options_.node,
                   " (host ", options_.host, "): ", status.message()));
  give_up_ms_ = now_ms_ + options_.resume_timeout_ms + kBackendGraceMs;
}

void Core::OnBoardFull(const absl::Status& status) {
  FailEpochHere(absl::Status(
      status.code(), absl::StrCat("node ", options_.node, " (host ",
                                  options_.host, "): ", status.message())));
}

void Core::FailEpoch(Code code, const std::string& text) {
  give_up_ms_.reset();
  phase_ = Phase::kEnded;
  abort_code_ = code;
  abort_text_ = text;
  actions_.push_back(AbortBoard{code, text});
}

void Core::FailEpochHere(const absl::Status& status) {
  give_up_ms_.reset();
  if (phase_ != Phase::kRunning) return;
  SendFailed(epoch_number(), status);
  FailEpoch(CodeOf(status.raw_code()), std::string(status.message()));
}

// --- Coordinator -------------------------------------------------------------

namespace {

// The epoch that a message is for, if the running epoch has to do with it; 0
// otherwise.
uint64_t EpochOf(const proto::CoordinatorMessage& m) {
  switch (m.payload_case()) {
    case proto::CoordinatorMessage::kExecute:
      return m.execute().epoch();
    case proto::CoordinatorMessage::kOperationFailed:
      return m.operation_failed().epoch();
    case proto::CoordinatorMessage::kSetReply:
      return m.set_reply().epoch();
    case proto::CoordinatorMessage::kJoinReply:
      return m.join_reply().epoch();
    case proto::CoordinatorMessage::kStandIn:
      return m.stand_in().epoch();
    case proto::CoordinatorMessage::kNotice:
      return m.notice().epoch();
    case proto::CoordinatorMessage::kConfirmBlocked:
      return m.confirm_blocked().epoch();
    case proto::CoordinatorMessage::kRankLeft:
      return m.rank_left().epoch();
    default:
      return 0;
  }
}

}  // namespace

bool Core::KeptForLater(const proto::CoordinatorMessage& message) {
  if (!starting() || epoch_number() == 0) return false;
  const uint64_t epoch =
      message.has_rank_left() ? message.rank_left().epoch() : EpochOf(message);
  if (epoch != epoch_number()) return false;
  early_.push_back(message);
  return true;
}

void Core::OnCoordinator(const proto::CoordinatorMessage& message) {
  // Elastic jobs: see proto RanksReady.
  round_ += message.has_epoch_start() ||
            (message.has_epoch_end() && message.epoch_end().epoch() == 0);
  if (message.has_membership_wanted()) return OnMembershipWanted(message);
  if (KeptForLater(message)) return;
  const bool of_epoch =
      phase_ == Phase::kRunning && EpochOf(message) == epoch_number();
  if (of_epoch) epoch_->CountHandled();
  switch (message.payload_case()) {
    case proto::CoordinatorMessage::kEpochStart:
      return OnEpochStart(message.epoch_start());
    case proto::CoordinatorMessage::kEndpoints:
      return OnEndpoints(message.endpoints());
    case proto::CoordinatorMessage::kRankLeft:
      return OnRankLeftElsewhere(message.rank_left());
    case proto::CoordinatorMessage::kEpochEnd:
      return OnEpochEnd(message.epoch_end());
    default:
      break;  // of the running epoch, or the link's business
  }
  if (!of_epoch) return;
  if (absl::Status s = OnEpochMessage(message); !s.ok()) FailEpochHere(s);
}

absl::Status Core::OnEpochMessage(const proto::CoordinatorMessage& message) {
  switch (message.payload_case()) {
    case proto::CoordinatorMessage::kExecute:
      return epoch_->OnExecute(message.execute());
    case proto::CoordinatorMessage::kOperationFailed:
      return epoch_->OnOperationFailed(message.operation_failed());
    case proto::CoordinatorMessage::kSetReply:
      return epoch_->OnSetReply(message.set_reply());
    case proto::CoordinatorMessage::kJoinReply:
      epoch_->OnJoinReply(message.join_reply());
      break;
    case proto::CoordinatorMessage::kStandIn:
      return epoch_->OnStandIn(message.stand_in());
    case proto::CoordinatorMessage::kNotice:
      OnNotice(message.notice());
      break;
    case proto::CoordinatorMessage::kConfirmBlocked:
      epoch_->OnConfirmBlocked(message.confirm_blocked().round());
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

void Core::OnNotice(const proto::Notice& notice) {
  auto line = session::Make<session::Notice>();
  session::SetText(line.text, notice.text());
  uint64_t here = 0;
  for (const auto& [local, m] : members_.members())
    here |= uint64_t{1} << local;
  const int to = static_cast<int>(epoch_->RankToTell(here));
  actions_.push_back(ReplyClient{members_.members().at(to).client, line});
}

void Core::OnRankLeftElsewhere(const proto::RankLeft& left) {
  const bool draining = phase_ == Phase::kIdle || phase_ == Phase::kReady;
  if (!epoch_ || left.epoch() != epoch_->info().epoch) return;
  if (starting() && !draining) return;
  const int rank = static_cast<int>(left.rank());
  if (phase_ == Phase::kRunning && members_.FindRank(rank) != nullptr) return;
  epoch_->OnRankLeft(rank, -1, left.message());
  if (draining && epoch_->AllHaveLeft()) ForgetEpoch();
}

void Core::OnEpochEnd(const proto::EpochEnd& end) {
  if (end.epoch() == 0 && (gathering_.elastic() || members_.elastic())) {
    RefuseWaiting(end);
    if (gathering_.empty()) SayWaiting();  // likewise
    return;
  }
  if (phase_ == Phase::kReady && epoch_ &&
      end.epoch() == epoch_->info().epoch) {
    return ForgetEpoch();  // the one before
  }
  if (end.epoch() == 0 && phase_ == Phase::kIdle) {
    if (gathering_.empty()) return;
    SendWaiting(Membership());  // whom we have told of since are refused too
    Refuse(&gathering_, CodeOf(end.code()), TextOf(end));
  } else if (starting()) {
    // Epoch 0: a start that failed; else the one that was about to run.
    if (end.epoch() == 0 || end.epoch() == epoch_number()) {
      if (members_.elastic()) return WaitAgain();
      if (phase_ == Phase::kReady) SendWaiting(Membership());
      FailStart(CodeOf(end.code()), TextOf(end));
    }
  } else if (end.epoch() == epoch_number() && phase_ == Phase::kRunning) {
    FailEpoch(CodeOf(end.code()), TextOf(end));
  } else if (end.epoch() == epoch_number() && phase_ == Phase::kIdle &&
             epoch_) {
    epoch_.reset();
    actions_.push_back(DropEpoch{});
  }
}

void Core::OnLinkLost(const absl::Status& status) {
  link_open_ = false;
  const Code code = CodeOf(status.raw_code());
  const std::string text(status.message());
  // First those that wait for the next epoch: nobody opens a link for them.
  Refuse(&gathering_, code, text);
  if (phase_ == Phase::kRunning) {
    FailEpoch(code, text);
  } else if (starting()) {
    FailStart(code, text);
  }
  if (phase_ == Phase::kIdle) ForgetEpoch();
}

void Core::OnStop(const std::string& text) {
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
