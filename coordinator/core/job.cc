#include "coordinator/core/job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

Job::Job(std::string id, const Config& config, JobOutput* output)
    : id_(std::move(id)),
      config_(config),
      out_(output),
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
  const std::optional<size_t> node = epoch_->nodes().IndexOf(session);
  return node && !epoch_->departures().LiveRanks(*node).empty();
}

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
    case proto::ExecutorMessage::kRankGone:
      return OnGone(session, message.epoch(), message.rank_gone());
    case proto::ExecutorMessage::kFailed:
      return OnFailed(session, message.epoch(), message.failed());
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

absl::Status Job::OnEpochMessage(Time now, SessionId session,
                                 const proto::ExecutorMessage& message) {
  const uint64_t epoch = message.epoch();
  absl::Status status = CheckEpoch(epoch);
  if (!status.ok() || !IsCurrent(epoch)) return status;
  const std::optional<size_t> node = epoch_->nodes().IndexOf(session);
  if (!node) {
    return InvalidArgument("the node has no ranks in epoch ", epoch,
                           " of the job");
  }
  status = epoch_->Handle(now, *node, message);
  EndIfDecided();
  return status;
}

absl::Status Job::CheckEpoch(uint64_t epoch) const {
  if (epoch <= std::max(epoch_number_, said_epoch_)) return absl::OkStatus();
  return InvalidArgument("a message of epoch ", epoch,
                         ", the job's last epoch is ", epoch_number_);
}

void Job::EndIfDecided() {
  if (epoch_ == nullptr || epoch_->verdict().empty()) return;
  EndEpoch(std::string(epoch_->verdict()));
}

absl::Status Job::OnGone(SessionId session, uint64_t epoch,
                         const proto::RankGone& gone) {
  absl::Status status = CheckEpoch(epoch);
  if (!status.ok()) return status;
  elastic_.OnLeft(session, epoch, gone);
  const NodeMember* waiting = gathering_.Find(session);
  // Epoch 0: the executor knew of no epoch when it sent this message.
  if (epoch == 0 && waiting != nullptr) {
    if (!waiting->HasRank(gone.rank())) {
      return InvalidArgument("rank ", gone.rank(),
                             " is gone, but is not a rank of the node");
    }
    out_->Count(ErrorKind::kRankLost);
    FailStart(
        absl::StrCat("the job cannot start: ", waiting->RankText(gone.rank()),
                     " ended: ", Cut(gone.how(), kMaxForeignText)),
        session);
    return absl::OkStatus();
  }
  if (epoch_ == nullptr) return absl::OkStatus();
  if (epoch != 0 && !IsCurrent(epoch)) return absl::OkStatus();
  const std::optional<size_t> node = epoch_->nodes().IndexOf(session);
  if (!node) return absl::OkStatus();
  return OnGoneFromEpoch(*node, gone);
}

absl::Status Job::OnGoneFromEpoch(size_t node, const proto::RankGone& gone) {
  const NodeMember& member = epoch_->nodes().members()[node];
  if (!member.HasRank(gone.rank())) {
    return InvalidArgument("rank ", gone.rank(),
                           " is gone, but is not a rank of the node");
  }
  if (epoch_->departures().Has(gone.rank())) return absl::OkStatus();
  const std::string how = Cut(gone.how(), kMaxForeignText);
  if (!gone.clean()) {
    out_->Count(ErrorKind::kRankLost);
    out_->Warn(LogPrefix("rank_lost"), " node=", member.node,
               " rank=", gone.rank(), " reason=", LogValue(how));
    EndEpoch(absl::StrCat(member.RankText(gone.rank()), " was lost: ", how));
    return absl::OkStatus();
  }
  out_->Info(LogPrefix("rank_left"), " node=", member.node,
             " rank=", gone.rank());
  if (epoch_->pending() > 0) out_->Count(ErrorKind::kRankLeft);
  epoch_->OnRankLeft(gone.rank());
  SendWanted();
  if (epoch_->departures().AllLeft()) {
    out_->Info(LogPrefix("epoch_end"), " reason=\"all ranks have left\"");
    DropEpoch();
    StartIfComplete();
  }
  return absl::OkStatus();
}

absl::Status Job::OnFailed(SessionId session, uint64_t epoch,
                           const proto::ExecutorFailed& failed) {
  absl::Status status = CheckEpoch(epoch);
  if (!status.ok()) return status;
  const Node& node = nodes_.at(session);
  const std::string message = Cut(failed.message(), kMaxForeignText);
  if (const NodeMember* waiting = gathering_.Find(session);
      epoch == 0 && waiting != nullptr) {
    out_->Count(ErrorKind::kExecutorLost);
    FailStart(absl::StrCat(
                  "the job cannot start: ", ExecutorText(node, waiting->ranks),
                  " failed: ", message),
              session);
    return absl::OkStatus();
  }
  if (epoch_ == nullptr) return absl::OkStatus();
  if (epoch != 0 && !IsCurrent(epoch)) return absl::OkStatus();
  const std::optional<size_t> index = epoch_->nodes().IndexOf(session);
  if (!index) return absl::OkStatus();
  // Epoch 0 refers to ranks that wait; here these are ranks whose epoch has
  // started meanwhile.
  if (epoch == 0 && epoch_->departures().LiveRanks(*index).empty()) {
    return absl::OkStatus();
  }
  out_->Count(ErrorKind::kExecutorLost);
  EndEpoch(
      absl::StrCat(ExecutorText(node, epoch_->nodes().members()[*index].ranks),
                   " failed: ", message));
  return absl::OkStatus();
}

void Job::Lost(Time now, SessionId session, const std::string& how) {
  LoseMember(session, how);
  NoteState(now);
}

void Job::LoseMember(SessionId session, const std::string& how) {
  const Node node = nodes_.at(session);
  nodes_.erase(session);
  if (failed_start_) {
    failed_start_->told.erase(session);
    if (failed_start_->told.empty()) failed_start_.reset();
  }
  if (const NodeMember* waiting = gathering_.Find(session)) {
    const std::string who = ExecutorText(node, waiting->ranks);
    gathering_.Remove(session);
    out_->Count(ErrorKind::kExecutorLost);
    FailStart(absl::StrCat("the job cannot start: ", who, " ", how), 0);
  }
  gathering_.Lose(session, how);
  if (gathering_.empty()) start_since_.reset();
  elastic_.OnLost(session);
  if (recovery_) {
    recovery_->Forget(session, how);
    return FinishRecoveryIfComplete();
  }
  if (epoch_ == nullptr) return;
  const std::optional<size_t> index = epoch_->nodes().IndexOf(session);
  if (!index) return;
  epoch_->nodes().Disconnect(*index);
  if (epoch_->departures().LiveRanks(*index).empty()) return;
  out_->Count(ErrorKind::kExecutorLost);
  EndEpoch(absl::StrCat(
      ExecutorText(node, epoch_->nodes().members()[*index].ranks), " ", how));
}

void Job::EndEpoch(const std::string& message) {
  out_->Warn(LogPrefix("epoch_end"), " reason=", LogValue(message));
  epoch_->End(message);
  DropEpoch();
  StartIfComplete();
}

void Job::DropEpoch() {
  decisions_ = epoch_->nodes().last_decision();
  epoch_.reset();
}

void Job::Stop(const std::string& message) {
  if (epoch_ != nullptr) {
    out_->Warn(LogPrefix("epoch_end"), " reason=", LogValue(message));
    epoch_->End(message);
    DropEpoch();
  }
  StopElastic(message);
  gathering_.TakeWaitingIn();
  if (!gathering_.empty()) FailStart(message, 0);
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

void Job::OnTime(Time now) {
  if (recovery_ && recovery_->deadline() <= now) FinishRecovery();
  if (epoch_ != nullptr) epoch_->OnTime(now);
  EndIfDecided();
  OnElasticTime(now);
  const std::optional<Time> deadline = StartDeadline();
  if (deadline && *deadline <= now) StartTimedOut();
  NoteState(now);
}

size_t Job::live_ranks() const {
  size_t n = 0;
  if (epoch_ == nullptr) return n;
  for (size_t i = 0; i < epoch_->nodes().members().size(); ++i) {
    n += epoch_->departures().LiveRanks(i).size();
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
