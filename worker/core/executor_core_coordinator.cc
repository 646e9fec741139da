// ExecutorCore: messages from the coordinator.
#include <string>
#include <utility>
#include <vector>

#include "worker/core/executor_core.h"

namespace maypole::worker {

bool ExecutorCore::KeptForLater(const proto::CoordinatorMessage& message) {
  if (!starting() || epoch_number() == 0) return false;
  if (message.epoch() != epoch_number()) return false;
  early_.push_back(message);
  return true;
}

void ExecutorCore::OnCoordinator(const proto::CoordinatorMessage& message) {
  // Elastic jobs: see proto RanksReady.
  round_ += message.has_epoch_start() ||
            (message.has_epoch_end() && message.epoch() == 0);
  // Messages that were kept for later come here twice.
  decisions_.Take(message);
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
      return OnRelayed(message.relayed());
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
  // The other nodes wait for this one's word, although its ranks have left.
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

void ExecutorCore::OnEpochEnd(uint64_t epoch, const proto::EpochEnd& end) {
  if (epoch != 0 && epoch == start_.epoch()) {
    NoteEnd(CodeOf(end.code()), TextOf(end));
  }
  const bool elastic =
      gathering_.elastic() || members_.elastic() ||
      (members_.empty() && gathering_.empty() && told_of_elastic_);
  if (epoch == 0 && elastic) {
    RefuseWaiting(end);
    if (gathering_.empty()) SayWaiting();  // tells the new round_, see above
    return;
  }
  if (phase_ == Phase::kReady && epoch_ && epoch == epoch_->info().epoch) {
    return ForgetEpoch();  // the previous epoch, which was draining
  }
  if (epoch == 0 && phase_ == Phase::kIdle) {
    if (gathering_.empty()) return;
    // Withdraws ranks that were reported meanwhile: they are refused, too.
    SendWaiting(Membership());
    Refuse(&gathering_, CodeOf(end.code()), TextOf(end));
  } else if (starting()) {
    // Epoch 0 means that the start has failed before an epoch had a number.
    if (epoch == 0 || epoch == epoch_number()) {
      if (members_.elastic()) return WaitAgain();
      if (phase_ == Phase::kReady) SendWaiting(Membership());
      FailStart(CodeOf(end.code()), TextOf(end));
    }
  } else if (epoch == epoch_number() && phase_ == Phase::kRunning) {
    FailEpoch(CodeOf(end.code()), TextOf(end));
  } else if (epoch == epoch_number() && phase_ == Phase::kIdle && epoch_) {
    epoch_.reset();
    actions_.push_back(DropEpoch{});
  }
}

}  // namespace maypole::worker
