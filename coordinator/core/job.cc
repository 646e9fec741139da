#include "coordinator/core/job.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/limits.h"
#include "coordinator/core/job_status.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership/start_config.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

Job::Job(std::string id, const Config& config, JobOutput* output)
    : config_(config),
      nodes_(std::move(id), output),
      start_(&nodes_, config.start_timeout),
      elastic_(config.elastic_settle, config.start_timeout),
      recovery_(config, &nodes_) {}

void Job::Join(Time now, NodeMember node) {
  if (nodes_.all().empty()) seen_since_ = now;
  nodes_.Add(std::move(node));
}

bool Job::Needs(SessionId session) const {
  if (recovery_.Has(session)) return true;
  return start_.gathering().Find(session) != nullptr ||
         elastic_.Waits(session) || !LiveRanks(session).empty();
}

// --- Messages ----------------------------------------------------------------

absl::Status Job::Handle(Time now, SessionId session,
                         const proto::ExecutorMessage& message) {
  absl::Status status = Dispatch(now, session, message);
  NoteState(now);
  return status;
}

absl::Status Job::Dispatch(Time now, SessionId session,
                           const proto::ExecutorMessage& message) {
  switch (message.payload_case()) {
    case proto::ExecutorMessage::kRanksReady:
      return OnReady(now, session, message.ranks_ready());
    case proto::ExecutorMessage::kRanksWaiting:
      return OnWaiting(now, session, message.ranks_waiting());
    case proto::ExecutorMessage::kNodeState:
      return OnNodeState(session, message.node_state());
    case proto::ExecutorMessage::kHello:
    case proto::ExecutorMessage::PAYLOAD_NOT_SET:
      return InvalidArgument(
          "a numbered message with a payload this coordinator does not know");
    default:
      return OnEpochMessage(now, session, message);
  }
}

absl::Status Job::OnReady(Time now, SessionId session,
                          const proto::RanksReady& ready) {
  if (absl::Status sound = CheckRanksReady(ready); !sound.ok()) return sound;
  if (ready.elastic()) return OnElasticReady(now, session, ready);
  const std::vector<uint32_t> live = LiveRanks(session);
  if (!live.empty()) {
    return InvalidArgument("ranks that are ready for a new epoch while ",
                           RanksText(live), " of the node have not left epoch ",
                           nodes_.epoch());
  }
  if (Refuses(session, false)) return absl::OkStatus();
  NodeMember member = nodes_[session];
  member.Read(ready);
  member.ranks = {ready.ranks().begin(), ready.ranks().end()};
  member.pids = {ready.pids().begin(), ready.pids().end()};
  member.local_size = static_cast<uint32_t>(ready.ranks_size());
  member.fusion_thresholds = {ready.fusion_thresholds().begin(),
                              ready.fusion_thresholds().end()};
  start_.SetReady(now, std::move(member), ready.size());
  StartIfComplete();
  return absl::OkStatus();
}

absl::Status Job::OnWaiting(Time now, SessionId session,
                            const proto::RanksWaiting& waiting) {
  absl::Status sound = CheckRanksWaiting(waiting);
  if (!sound.ok()) return sound;
  if (!LiveRanks(session).empty()) {
    // The node's start timed out while its last ranks became ready: the
    // messages have crossed.
    const size_t node = *epoch_->nodes().IndexOf(session);
    EndEpoch(absl::AbortedError(absl::StrCat(
        "the job cannot start: ", epoch_->nodes()[node].ExecutorText(),
        " has given up waiting for it")));
  }
  start_.Remove(session);
  if (waiting.ranks().empty() || Refuses(session, false)) {
    return absl::OkStatus();
  }
  NodeMember member = nodes_[session];
  member.ranks = {waiting.ranks().begin(), waiting.ranks().end()};
  member.local_size = waiting.local_size();
  member.start_timeout_ms = waiting.start_timeout_ms();
  start_.SetWaiting(now, std::move(member), waiting.size());
  return absl::OkStatus();
}

absl::Status Job::OnElasticReady(Time now, SessionId session,
                                 const proto::RanksReady& ready) {
  const NodeMember& node = nodes_[session];
  const uint64_t round = nodes_.Round(session);
  if (ready.round() > round) {
    return InvalidArgument("ranks that are ready in round ", ready.round(),
                           ", the node has been sent ", round);
  }
  // The message has crossed with a start or a refusal: the node sends it again.
  if (ready.round() < round) return absl::OkStatus();
  if (!ready.members().empty() && Refuses(session, true)) {
    return absl::OkStatus();
  }
  absl::Status status = elastic_.SetWaiting(now, node, ready);
  nodes_.Info("ranks_wait", " node=", node.node, " host=", node.host,
              " waiting=", ready.members_size(),
              " of_all=", elastic_.waiting());
  if (!status.ok()) {
    nodes_.Refuse(session, {}, status.code(), std::string(status.message()));
  }
  SendWanted();
  return absl::OkStatus();
}

absl::Status Job::OnEpochMessage(Time now, SessionId session,
                                 const proto::ExecutorMessage& message) {
  const uint64_t epoch = message.epoch();
  absl::Status status = CheckEpoch(epoch);
  if (!status.ok()) return status;
  if (message.has_rank_gone()) {
    return OnGone(session, epoch, message.rank_gone());
  }
  if (message.has_failed()) return OnFailed(session, epoch, message.failed());
  if (epoch_ == nullptr || epoch != epoch_->number()) return absl::OkStatus();
  const std::optional<size_t> node = epoch_->nodes().IndexOf(session);
  if (!node) {
    return InvalidArgument("the node has no ranks in epoch ", epoch,
                           " of the job");
  }
  status = epoch_->Handle(now, *node, message);
  EndIfDecided();
  return status;
}

absl::Status Job::OnGone(SessionId session, uint64_t epoch,
                         const proto::RankGone& gone) {
  elastic_.OnLeft(session, epoch, gone);
  const NodeMember* waiting = start_.gathering().Find(session);
  // Epoch 0: the executor knew of no epoch when it sent this message.
  if (epoch == 0 && waiting != nullptr) {
    if (!waiting->HasRank(gone.rank())) {
      return InvalidArgument("rank ", gone.rank(),
                             " is gone, but is not a rank of the node");
    }
    nodes_.Count(ErrorKind::kRankLost);
    start_.Fail(
        absl::StrCat("the job cannot start: ", waiting->RankText(gone.rank()),
                     " ended: ", Cut(gone.how(), kMaxForeignText)),
        session);
    return absl::OkStatus();
  }
  const std::optional<size_t> node = IndexIn(epoch, session);
  return node ? OnGoneFromEpoch(*node, gone) : absl::OkStatus();
}

absl::Status Job::OnGoneFromEpoch(size_t node, const proto::RankGone& gone) {
  const NodeMember& member = epoch_->nodes()[node];
  if (!member.HasRank(gone.rank())) {
    return InvalidArgument("rank ", gone.rank(),
                           " is gone, but is not a rank of the node");
  }
  if (epoch_->departures().Has(gone.rank())) return absl::OkStatus();
  const std::string how = Cut(gone.how(), kMaxForeignText);
  if (!gone.clean()) {
    nodes_.Count(ErrorKind::kRankLost);
    nodes_.Warn("rank_lost", " node=", member.node, " rank=", gone.rank(),
                " reason=", LogValue(how));
    EndEpoch(absl::AbortedError(
        absl::StrCat(member.RankText(gone.rank()), " was lost: ", how)));
    return absl::OkStatus();
  }
  nodes_.Info("rank_left", " node=", member.node, " rank=", gone.rank());
  if (epoch_->pending() > 0) nodes_.Count(ErrorKind::kRankLeft);
  epoch_->OnRankLeft(gone.rank());
  SendWanted();
  if (epoch_->departures().AllLeft()) {
    nodes_.Info("epoch_end", " reason=\"all ranks have left\"");
    DropEpoch();
    StartIfComplete();
  }
  return absl::OkStatus();
}

absl::Status Job::OnFailed(SessionId session, uint64_t epoch,
                           const proto::ExecutorFailed& failed) {
  const std::string message = Cut(failed.message(), kMaxForeignText);
  if (const NodeMember* waiting = start_.gathering().Find(session);
      epoch == 0 && waiting != nullptr) {
    nodes_.Count(ErrorKind::kExecutorLost);
    start_.Fail(absl::StrCat("the job cannot start: ", waiting->ExecutorText(),
                             " failed: ", message),
                session);
    return absl::OkStatus();
  }
  const std::optional<size_t> index = IndexIn(epoch, session);
  if (!index) return absl::OkStatus();
  // Epoch 0 refers to ranks that wait; here these are ranks whose epoch has
  // started meanwhile.
  if (epoch == 0 && LiveRanks(session).empty()) return absl::OkStatus();
  nodes_.Count(ErrorKind::kExecutorLost);
  EndEpoch(absl::AbortedError(absl::StrCat(
      epoch_->nodes()[*index].ExecutorText(), " failed: ", message)));
  return absl::OkStatus();
}

absl::Status Job::CheckEpoch(uint64_t epoch) const {
  if (epoch <= std::max(nodes_.epoch(), recovery_.last_epoch_said()))
    return absl::OkStatus();
  return InvalidArgument("a message of epoch ", epoch,
                         ", the job's last epoch is ", nodes_.epoch());
}

bool Job::IsElasticEpoch() const {
  return epoch_ != nullptr &&
         !epoch_->nodes().members().front().clients.empty();
}

std::optional<size_t> Job::IndexIn(uint64_t epoch, SessionId session) const {
  if (epoch_ == nullptr || (epoch != 0 && epoch != epoch_->number())) {
    return std::nullopt;
  }
  return epoch_->nodes().IndexOf(session);
}

std::vector<uint32_t> Job::LiveRanks(SessionId session) const {
  const std::optional<size_t> node = IndexIn(0, session);
  if (!node) return {};
  return epoch_->departures().LiveRanks(*node);
}

std::vector<uint32_t> Job::LiveRanks() const {
  std::vector<uint32_t> ranks;
  if (epoch_ == nullptr) return ranks;
  for (size_t i = 0; i < epoch_->nodes().members().size(); ++i) {
    const std::vector<uint32_t> live = epoch_->departures().LiveRanks(i);
    ranks.insert(ranks.end(), live.begin(), live.end());
  }
  return ranks;
}

// --- Starts ------------------------------------------------------------------

bool Job::Refuses(SessionId session, bool elastic) {
  if (aborted_) {
    nodes_.Refuse(session, {}, absl::StatusCode::kAborted, *aborted_);
    return true;
  }
  const bool others_are = elastic ? !start_.gathering().empty() ||
                                        (epoch_ != nullptr && !IsElasticEpoch())
                                  : elastic_.active() || IsElasticEpoch();
  if (!others_are) return false;
  nodes_.Refuse(session, {}, absl::StatusCode::kInvalidArgument,
                absl::StrCat("the job cannot take the ranks of ",
                             nodes_[session].Text(), ": they are ",
                             elastic ? "elastic, the others are not"
                                     : "not elastic, the others are",
                             "; start all ranks of a job alike"));
  return true;
}

void Job::StartIfComplete() {
  if (epoch_ != nullptr || recovery_.active() || !start_.gathering().Complete())
    return;
  Begin(start_.Take());
}

void Job::Begin(std::vector<NodeMember> members) {
  uint32_t size = 0;
  for (const NodeMember& m : members) {
    size += static_cast<uint32_t>(m.ranks.size());
  }
  nodes_.SetEpoch(std::max(nodes_.epoch(), recovery_.last_epoch_said()) + 1);
  const Config config = StartConfig(config_, members, &nodes_);
  const EpochSize sizes = {size, elastic_.min_size(), elastic_.max_size()};
  epoch_ = std::make_unique<CoordinatorEpoch>(nodes_.epoch(), sizes,
                                              std::move(members), config,
                                              nodes_.job(), nodes_.output());
  nodes_.Info("epoch_start", " size=", size,
              " nodes=", epoch_->nodes().members().size());
  for (const NodeMember& m : epoch_->nodes().members()) {
    nodes_.CountStart(m.session);
  }
  epoch_->Start(decisions_);
}

void Job::StartElastic() {
  if (nodes_.epoch() > 0 && elastic_.LastEpochSaid() == 0) {
    nodes_.Warn("state_lost", " reason=",
                LogValue("all ranks of the next membership epoch are new "
                         "processes, so training state that executors do not "
                         "keep begins anew; keep it (TorchState(keep=True)), "
                         "or let a host of the job stay when hosts change"));
  }
  // The new epoch gets a number that none of its processes has seen before.
  nodes_.SetEpoch(std::max(
      {nodes_.epoch(), recovery_.last_epoch_said(), elastic_.LastEpochSaid()}));
  Begin(elastic_.Begin(nodes_.epoch() + 1));
}

void Job::OnElasticTime(Time now) {
  if (!elastic_.active() || recovery_.active()) return;
  const Elastic::Verdict verdict =
      elastic_.OnTime(now, epoch_ != nullptr, RunningText());
  if (!verdict.left_behind.empty()) {
    nodes_.Count(ErrorKind::kStartTimeout);
    nodes_.Warn(
        "ranks_left_behind", " reason=",
        LogValue(Cut(absl::StrCat(absl::StrJoin(verdict.left_behind, ", "),
                                  " did not call init() again within ",
                                  SecondsText(verdict.waited)),
                     kMaxErrorBytes)));
  }
  for (const Elastic::Refused& refused : verdict.refused) {
    if (refused.code == absl::StatusCode::kDeadlineExceeded) {
      nodes_.Count(ErrorKind::kStartTimeout);
    }
    nodes_.Refuse(refused.session, refused.clients, refused.code, refused.why);
  }
  if (verdict.start) StartElastic();
  SendWanted();
}

void Job::SendWanted() {
  if (!IsElasticEpoch()) return;
  epoch_->SetWanted(elastic_.NewRanksWanted(), elastic_.Leaving());
}

std::string Job::RunningText() const {
  if (epoch_ == nullptr) return "";
  const std::vector<uint32_t> ranks = LiveRanks();
  std::string out = absl::StrCat("epoch ", nodes_.epoch(), " is running with ",
                                 RanksText(ranks));
  if (ranks.size() >= elastic_.max_size()) {
    absl::StrAppend(&out, ", as many as the job may have");
  } else {
    absl::StrAppend(&out, ", which have not left it for another one");
  }
  return out;
}

// --- A coordinator before this one ------------------------------------------

absl::Status Job::OnNodeState(SessionId session,
                              const proto::NodeState& state) {
  absl::Status status = recovery_.Take(session, state);
  if (status.ok()) FinishRecoveryIfComplete();
  return status;
}

void Job::FinishRecovery() {
  JobRecovery::Result result = recovery_.Finish(&decisions_);
  epoch_ = std::move(result.epoch);
  if (!result.last || result.last->members.front().clients.empty()) return;
  elastic_.Restore(result.last->start, result.last->members);
}

// --- Ends --------------------------------------------------------------------

void Job::Lost(Time now, SessionId session, const std::string& how) {
  LoseMember(session, how);
  NoteState(now);
}

void Job::LoseMember(SessionId session, const std::string& how) {
  nodes_.Remove(session);
  start_.Lose(session, how);
  elastic_.OnLost(session);
  if (recovery_.active()) {
    recovery_.Forget(session, how);
    return FinishRecoveryIfComplete();
  }
  const std::optional<size_t> index = IndexIn(0, session);
  if (!index) return;
  epoch_->nodes().Disconnect(*index);
  if (epoch_->departures().LiveRanks(*index).empty()) return;
  nodes_.Count(ErrorKind::kExecutorLost);
  EndEpoch(absl::AbortedError(
      absl::StrCat(epoch_->nodes()[*index].ExecutorText(), " ", how)));
}

void Job::EndIfDecided() {
  if (epoch_ == nullptr || epoch_->verdict().ok()) return;
  EndEpoch(absl::Status(epoch_->verdict()));
}

void Job::EndEpoch(const absl::Status& why) {
  nodes_.Warn("epoch_end", " reason=", LogValue(why.message()));
  epoch_->End(why);
  DropEpoch();
  StartIfComplete();
}

void Job::DropEpoch() {
  decisions_ = epoch_->nodes().last_decision();
  epoch_.reset();
}

void Job::Stop(const std::string& message) {
  if (epoch_ != nullptr) {
    nodes_.Warn("epoch_end", " reason=", LogValue(message));
    epoch_->End(absl::AbortedError(message));
    DropEpoch();
  }
  for (const SessionId session : elastic_.WaitingSessions()) {
    nodes_.Refuse(session, {}, absl::StatusCode::kAborted, message);
  }
  elastic_.Clear();
  start_.Stop(message);
}

// --- Time --------------------------------------------------------------------

std::optional<Time> Job::Deadline() const {
  std::optional<Time> next = Earlier(start_.Deadline(), recovery_.Deadline());
  if (epoch_ != nullptr) next = Earlier(next, epoch_->Deadline());
  if (elastic_.active() && !recovery_.active()) {
    next = Earlier(next, elastic_.Deadline(epoch_ != nullptr));
  }
  return next;
}

void Job::OnTime(Time now) {
  if (const auto deadline = recovery_.Deadline();
      deadline && *deadline <= now) {
    FinishRecovery();
  }
  if (epoch_ != nullptr) epoch_->OnTime(now);
  EndIfDecided();
  OnElasticTime(now);
  if (const auto deadline = start_.Deadline(); deadline && *deadline <= now) {
    start_.TimeOut(
        epoch_ == nullptr
            ? ""
            : absl::StrCat("epoch ", nodes_.epoch(),
                           " is still running; end it before you start "
                           "another"));
  }
  NoteState(now);
}

void Job::NoteState(Time now) {
  std::pair<std::string, uint64_t> seen(State(), nodes_.epoch());
  if (seen_ == seen) return;
  seen_ = std::move(seen);
  seen_since_ = now;
}

// --- The operator ------------------------------------------------------------

std::string Job::State() const {
  if (epoch_ != nullptr) return "running";
  const bool waits = !start_.gathering().empty() || elastic_.waiting() > 0;
  const bool has_begun = nodes_.epoch() > 0 || aborted_;
  return waits || !has_begun ? "starting" : "ended";
}

void Job::FillStatus(Time now, proto::JobStatus* status) const {
  const Gathering& gathering = start_.gathering();
  status->set_job(nodes_.job());
  status->set_epoch(nodes_.epoch());
  status->set_state(State());
  status->set_state_seconds(
      std::chrono::duration<double>(now - seen_since_).count());
  status->set_elastic(elastic_.active() || IsElasticEpoch());
  status->set_size(gathering.empty() ? elastic_.waiting() : gathering.size());
  if (epoch_ != nullptr) epoch_->FillStatus(status);
  for (const auto& [session, node] : nodes_.all()) {
    FillNodeStatus(now, node, epoch(), gathering, elastic_,
                   status->add_nodes());
  }
  if (epoch_ != nullptr) epoch_->FillStats(now, status);
}

absl::StatusOr<proto::TimelineStatus> Job::RecordTimeline(
    bool stop, absl::string_view who) {
  if (epoch_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job does not run: it is ", State()));
  }
  if (absl::Status s = epoch_->timeline().Record(stop); !s.ok()) {
    return s;
  }
  proto::JobStatus status;
  epoch_->timeline().FillStatus(&status);
  const proto::TimelineStatus& timeline = status.timeline();
  nodes_.Info(stop ? "timeline_stopped" : "timeline_started",
              " rank=", timeline.rank(), " host=", timeline.host(),
              " path=", LogValue(timeline.path()), " who=", LogValue(who));
  return timeline;
}

uint32_t Job::Abort(Time now, const std::string& message) {
  const size_t told =
      LiveRanks().size() + elastic_.waiting() + start_.gathering().ranks();
  aborted_ = Cut(message, kMaxErrorBytes);
  nodes_.Warn("job_aborted", " ranks=", told, " reason=", LogValue(message));
  Stop(message);
  // Ranks that come later are refused, without another failed start.
  start_.ForgetFailure();
  NoteState(now);
  return static_cast<uint32_t>(told);
}

}  // namespace maypole::coordinator
