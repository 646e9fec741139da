#include "coordinator/core/job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

// The epoch of a message that CoordinatorEpoch handles.
uint64_t EpochOf(const proto::ExecutorMessage& m) {
  switch (m.payload_case()) {
    case proto::ExecutorMessage::kEndpoint:
      return m.endpoint().epoch();
    case proto::ExecutorMessage::kPresence:
      return m.presence().epoch();
    case proto::ExecutorMessage::kSetRequest:
      return m.set_request().epoch();
    case proto::ExecutorMessage::kJoinState:
      return m.join_state().epoch();
    case proto::ExecutorMessage::kLate:
      return m.late().epoch();
    case proto::ExecutorMessage::kBlocked:
      return m.blocked().epoch();
    case proto::ExecutorMessage::kRetireNames:
      return m.retire_names().epoch();
    case proto::ExecutorMessage::kScheduleEnded:
      return m.schedule_ended().epoch();
    case proto::ExecutorMessage::kCommunicatorId:
      return m.communicator_id().epoch();
    case proto::ExecutorMessage::kRankGpu:
      return m.rank_gpu().epoch();
    case proto::ExecutorMessage::kResults:
      return m.results().epoch();
    case proto::ExecutorMessage::kTimelineRequest:
      return m.timeline_request().epoch();
    case proto::ExecutorMessage::kTimelineRecords:
      return m.timeline_records().epoch();
    case proto::ExecutorMessage::kTimelineTaken:
      return m.timeline_taken().epoch();
    case proto::ExecutorMessage::kTimelineClosed:
      return m.timeline_closed().epoch();
    case proto::ExecutorMessage::kClockQuery:
      return m.clock_query().epoch();
    case proto::ExecutorMessage::kNodeStats:
      return m.node_stats().epoch();
    default:
      return 0;
  }
}

}  // namespace

Job::Job(std::string id, const Config& config)
    : id_(std::move(id)),
      config_(config),
      elastic_(config.elastic_settle, config.start_timeout) {}

void Job::Join(Time now, SessionId session, Node node) {
  if (nodes_.empty()) seen_since_ = now;
  nodes_.emplace(session, std::move(node));
}

std::optional<SessionId> Job::SessionOf(const std::string& node) const {
  for (const auto& [session, n] : nodes_) {
    if (n.node == node) return session;
  }
  return std::nullopt;
}

bool Job::Needs(SessionId session) const {
  if (recovery_ && recovery_->Has(session)) return true;
  if (gathering_.Find(session) != nullptr || elastic_.Waits(session)) {
    return true;
  }
  if (epoch_ == nullptr) return false;
  const std::optional<size_t> node = epoch_->IndexOf(session);
  return node && !epoch_->LiveRanks(*node).empty();
}

absl::Status Job::Handle(Time now, SessionId session,
                         const proto::ExecutorMessage& message,
                         JobOutput* out) {
  absl::Status status = Dispatch(now, session, message, out);
  NoteState(now);
  return status;
}

absl::Status Job::Dispatch(Time now, SessionId session,
                           const proto::ExecutorMessage& message,
                           JobOutput* out) {
  switch (message.payload_case()) {
    case proto::ExecutorMessage::kRanksReady:
      return OnReady(now, session, message.ranks_ready(), out);
    case proto::ExecutorMessage::kRanksWaiting:
      return OnWaiting(now, session, message.ranks_waiting(), out);
    case proto::ExecutorMessage::kRankGone:
      return OnGone(session, message.rank_gone(), out);
    case proto::ExecutorMessage::kFailed:
      return OnFailed(session, message.failed(), out);
    case proto::ExecutorMessage::kNodeState:
      return OnNodeState(session, message.node_state(), out);
    case proto::ExecutorMessage::kHello:
    case proto::ExecutorMessage::PAYLOAD_NOT_SET:
      return absl::InvalidArgumentError(
          "a numbered message with a payload this coordinator does not know");
    default:
      return OnEpochMessage(now, session, message, out);
  }
}

absl::Status Job::OnEpochMessage(Time now, SessionId session,
                                 const proto::ExecutorMessage& message,
                                 JobOutput* out) {
  const uint64_t epoch = EpochOf(message);
  absl::Status status = CheckEpoch(epoch);
  if (!status.ok() || !IsCurrent(epoch)) return status;
  const std::optional<size_t> node = epoch_->IndexOf(session);
  if (!node) {
    return absl::InvalidArgumentError(
        absl::StrCat("the node has no ranks in epoch ", epoch, " of the job"));
  }
  status = epoch_->Handle(now, *node, message, out);
  EndIfDecided(out);
  return status;
}

absl::Status Job::CheckEpoch(uint64_t epoch) const {
  if (epoch <= std::max(epoch_number_, said_epoch_)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a message of epoch ", epoch,
                                                 ", the job's last epoch is ",
                                                 epoch_number_));
}

void Job::EndIfDecided(JobOutput* out) {
  if (epoch_ == nullptr || epoch_->verdict().empty()) return;
  EndEpoch(std::string(epoch_->verdict()), out);
}

absl::Status Job::OnGone(SessionId session, const proto::RankGone& gone,
                         JobOutput* out) {
  absl::Status status = CheckEpoch(gone.epoch());
  if (!status.ok()) return status;
  elastic_.OnLeft(session, gone);
  const NodeMember* waiting = gathering_.Find(session);
  // Epoch 0: the executor knew of no epoch when it sent this message.
  if (gone.epoch() == 0 && waiting != nullptr) {
    if (!waiting->HasRank(gone.rank())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", gone.rank(), " is gone, but is not a rank of the node"));
    }
    out->Count(ErrorKind::kRankLost);
    FailStart(
        absl::StrCat("the job cannot start: ", waiting->RankText(gone.rank()),
                     " ended: ", Cut(gone.how(), kMaxForeignText)),
        session, out);
    return absl::OkStatus();
  }
  if (epoch_ == nullptr) return absl::OkStatus();
  if (gone.epoch() != 0 && !IsCurrent(gone.epoch())) return absl::OkStatus();
  const std::optional<size_t> node = epoch_->IndexOf(session);
  if (!node) return absl::OkStatus();
  return OnGoneFromEpoch(*node, gone, out);
}

absl::Status Job::OnGoneFromEpoch(size_t node, const proto::RankGone& gone,
                                  JobOutput* out) {
  const NodeMember& member = epoch_->members()[node];
  if (!member.HasRank(gone.rank())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", gone.rank(), " is gone, but is not a rank of the node"));
  }
  if (epoch_->HasLeft(gone.rank())) return absl::OkStatus();
  const std::string how = Cut(gone.how(), kMaxForeignText);
  if (!gone.clean()) {
    out->Count(ErrorKind::kRankLost);
    out->Warn(absl::StrCat(LogPrefix("rank_lost"), " node=", member.node,
                           " rank=", gone.rank(), " reason=", LogValue(how)));
    EndEpoch(absl::StrCat(member.RankText(gone.rank()), " was lost: ", how),
             out);
    return absl::OkStatus();
  }
  out->Info(absl::StrCat(LogPrefix("rank_left"), " node=", member.node,
                         " rank=", gone.rank()));
  if (epoch_->pending() > 0) out->Count(ErrorKind::kRankLeft);
  epoch_->OnRankLeft(gone.rank(), out);
  SendWanted(out);
  if (epoch_->AllLeft()) {
    out->Info(absl::StrCat(LogPrefix("epoch_end"),
                           " reason=\"all ranks have left\""));
    DropEpoch();
    StartIfComplete(out);
  }
  return absl::OkStatus();
}

absl::Status Job::OnFailed(SessionId session,
                           const proto::ExecutorFailed& failed,
                           JobOutput* out) {
  absl::Status status = CheckEpoch(failed.epoch());
  if (!status.ok()) return status;
  const Node& node = nodes_.at(session);
  const std::string message = Cut(failed.message(), kMaxForeignText);
  if (const NodeMember* waiting = gathering_.Find(session);
      failed.epoch() == 0 && waiting != nullptr) {
    out->Count(ErrorKind::kExecutorLost);
    FailStart(absl::StrCat(
                  "the job cannot start: ", ExecutorText(node, waiting->ranks),
                  " failed: ", message),
              session, out);
    return absl::OkStatus();
  }
  if (epoch_ == nullptr) return absl::OkStatus();
  if (failed.epoch() != 0 && !IsCurrent(failed.epoch())) {
    return absl::OkStatus();
  }
  const std::optional<size_t> index = epoch_->IndexOf(session);
  if (!index) return absl::OkStatus();
  // Epoch 0 refers to ranks that wait; here these are ranks whose epoch has
  // started meanwhile.
  if (failed.epoch() == 0 && epoch_->LiveRanks(*index).empty()) {
    return absl::OkStatus();
  }
  out->Count(ErrorKind::kExecutorLost);
  EndEpoch(absl::StrCat(ExecutorText(node, epoch_->members()[*index].ranks),
                        " failed: ", message),
           out);
  return absl::OkStatus();
}

void Job::Lost(Time now, SessionId session, const std::string& how,
               JobOutput* out) {
  LoseMember(session, how, out);
  NoteState(now);
}

void Job::LoseMember(SessionId session, const std::string& how,
                     JobOutput* out) {
  const Node node = nodes_.at(session);
  nodes_.erase(session);
  if (failed_start_) {
    failed_start_->told.erase(session);
    if (failed_start_->told.empty()) failed_start_.reset();
  }
  if (const NodeMember* waiting = gathering_.Find(session)) {
    const std::string who = ExecutorText(node, waiting->ranks);
    gathering_.Remove(session);
    out->Count(ErrorKind::kExecutorLost);
    FailStart(absl::StrCat("the job cannot start: ", who, " ", how), 0, out);
  }
  gathering_.Lose(session, how);
  if (gathering_.empty()) start_since_.reset();
  elastic_.OnLost(session);
  if (recovery_) {
    recovery_->Forget(session, how);
    return FinishRecoveryIfComplete(out);
  }
  if (epoch_ == nullptr) return;
  const std::optional<size_t> index = epoch_->IndexOf(session);
  if (!index) return;
  epoch_->Forget(*index);
  if (epoch_->LiveRanks(*index).empty()) return;
  out->Count(ErrorKind::kExecutorLost);
  EndEpoch(absl::StrCat(ExecutorText(node, epoch_->members()[*index].ranks),
                        " ", how),
           out);
}

void Job::EndEpoch(const std::string& message, JobOutput* out) {
  out->Warn(
      absl::StrCat(LogPrefix("epoch_end"), " reason=", LogValue(message)));
  epoch_->End(message, out);
  DropEpoch();
  StartIfComplete(out);
}

void Job::DropEpoch() {
  decisions_ = epoch_->last_decision();
  epoch_.reset();
}

void Job::Stop(const std::string& message, JobOutput* out) {
  if (epoch_ != nullptr) {
    out->Warn(
        absl::StrCat(LogPrefix("epoch_end"), " reason=", LogValue(message)));
    epoch_->End(message, out);
    DropEpoch();
  }
  StopElastic(message, out);
  gathering_.TakeWaitingIn();
  if (!gathering_.empty()) FailStart(message, 0, out);
}

std::optional<Time> Job::Deadline() const {
  std::optional<Time> next = StartDeadline();
  const auto consider = [&next](const std::optional<Time>& time) {
    if (time && (!next || *time < *next)) next = time;
  };
  if (recovery_) consider(recovery_->deadline());
  if (epoch_ != nullptr) consider(epoch_->Deadline());
  if (elastic_.active() && !recovery_) {
    consider(elastic_.Deadline(epoch_ != nullptr));
  }
  return next;
}

void Job::OnTime(Time now, JobOutput* out) {
  if (recovery_ && recovery_->deadline() <= now) FinishRecovery(out);
  if (epoch_ != nullptr) epoch_->OnTime(now, out);
  EndIfDecided(out);
  OnElasticTime(now, out);
  const std::optional<Time> deadline = StartDeadline();
  if (deadline && *deadline <= now) StartTimedOut(out);
  NoteState(now);
}

Time Job::TakeStragglerTime(Time now, SessionId session) {
  if (epoch_ == nullptr) return Time::zero();
  const std::optional<size_t> node = epoch_->IndexOf(session);
  return node ? epoch_->TakeStragglerTime(now, *node) : Time::zero();
}

size_t Job::live_ranks() const {
  size_t n = 0;
  if (epoch_ == nullptr) return n;
  for (size_t i = 0; i < epoch_->members().size(); ++i) {
    n += epoch_->LiveRanks(i).size();
  }
  return n;
}

std::string Job::ExecutorText(const Node& node,
                              const std::vector<uint32_t>& ranks) const {
  return absl::StrCat("the executor of ", NodeText(node.node, node.host),
                      " with ", RanksText(ranks));
}

std::string Job::LogPrefix(absl::string_view event) const {
  return absl::StrCat("event=", event, " job=", id_, " epoch=", epoch_number_);
}

}  // namespace maypole::coordinator
