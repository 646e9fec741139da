// ExecutorCore: messages from the coordinator.
#include <string>
#include <utility>
#include <vector>

#include "worker/core/executor_core.h"

namespace maypole::worker {

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
    case proto::CoordinatorMessage::kNamesRetired:
      return m.names_retired().epoch();
    case proto::CoordinatorMessage::kRankLeft:
      return m.rank_left().epoch();
    case proto::CoordinatorMessage::kSchedule:
      return m.schedule().epoch();
    case proto::CoordinatorMessage::kCommunicator:
      return m.communicator().epoch();
    case proto::CoordinatorMessage::kCommunicatorId:
      return m.communicator_id().epoch();
    default:
      return 0;
  }
}

}  // namespace

bool ExecutorCore::KeptForLater(const proto::CoordinatorMessage& message) {
  if (!starting() || epoch_number() == 0) return false;
  const uint64_t epoch =
      message.has_rank_left() ? message.rank_left().epoch() : EpochOf(message);
  if (epoch != epoch_number()) return false;
  early_.push_back(message);
  return true;
}

void ExecutorCore::OnCoordinator(const proto::CoordinatorMessage& message) {
  // Elastic jobs: see proto RanksReady.
  round_ += message.has_epoch_start() ||
            (message.has_epoch_end() && message.epoch_end().epoch() == 0);
  if (message.has_membership_wanted()) return OnMembershipWanted(message);
  if (message.has_relayed()) return OnRelayed(message.relayed());
  if (message.has_recovered()) return OnRecovered(message.recovered());
  if (message.has_watch_stats()) {
    if (message.watch_stats().epoch() != epoch_number()) return;
    return stats_watch_.OnWatch(now_ms_, message.watch_stats());
  }
  // Messages that were kept for later come here twice.
  decisions_.Take(message);
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
      break;  // a message for the running epoch, or one that the link handles
  }
  // The other nodes wait for this one's word, although its ranks have left.
  if (drains() && message.has_schedule() &&
      message.schedule().epoch() == epoch_->info().epoch) {
    static_cast<void>(epoch_->OnSchedule(message.schedule()));
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
      return epoch_->OnSetReply(message.set_reply());
    case proto::CoordinatorMessage::kJoinReply:
      epoch_->OnJoinReply(message.join_reply());
      break;
    case proto::CoordinatorMessage::kStandIn:
      return epoch_->OnStandIn(message.stand_in());
    case proto::CoordinatorMessage::kNamesRetired:
      return epoch_->OnNamesRetired(message.names_retired());
    case proto::CoordinatorMessage::kSchedule:
      return epoch_->OnSchedule(message.schedule());
    case proto::CoordinatorMessage::kCommunicator:
      return epoch_->OnCommunicator(message.communicator());
    case proto::CoordinatorMessage::kCommunicatorId:
      return epoch_->OnCommunicatorId(message.communicator_id());
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

void ExecutorCore::OnNotice(const proto::Notice& notice) {
  auto line = session::Make<session::Notice>();
  session::SetText(line.text, notice.text());
  uint64_t here = 0;
  for (const auto& [local, m] : members_.members())
    here |= uint64_t{1} << local;
  const int to = static_cast<int>(epoch_->RankToTell(here));
  actions_.push_back(ReplyClient{members_.members().at(to).client, line});
}

void ExecutorCore::OnRankLeftElsewhere(const proto::RankLeft& left) {
  if (!epoch_ || left.epoch() != epoch_->info().epoch) return;
  if (starting() && !drains()) return;
  std::vector<std::pair<int, std::string>> ranks = {
      {static_cast<int>(left.rank()), left.message()}};
  for (const uint32_t other : left.others()) {
    const int rank = static_cast<int>(other);
    ranks.emplace_back(rank, epoch_->LeftText(rank));
  }
  for (const auto& [rank, text] : ranks) {
    if (phase_ == Phase::kRunning && members_.FindRank(rank) != nullptr) {
      continue;
    }
    if (absl::Status s = epoch_->OnRankLeft(rank, -1, text); !s.ok()) {
      return FailEpochHere(s);
    }
  }
  if (drains() && epoch_->AllHaveLeft()) ForgetEpoch();
}

void ExecutorCore::OnEpochEnd(const proto::EpochEnd& end) {
  if (end.epoch() != 0 && end.epoch() == start_.epoch()) {
    NoteEnd(CodeOf(end.code()), TextOf(end));
  }
  const bool elastic =
      gathering_.elastic() || members_.elastic() ||
      (members_.empty() && gathering_.empty() && told_of_elastic_);
  if (end.epoch() == 0 && elastic) {
    RefuseWaiting(end);
    if (gathering_.empty()) SayWaiting();  // tells the new round_, see above
    return;
  }
  if (phase_ == Phase::kReady && epoch_ &&
      end.epoch() == epoch_->info().epoch) {
    return ForgetEpoch();  // the previous epoch, which was draining
  }
  if (end.epoch() == 0 && phase_ == Phase::kIdle) {
    if (gathering_.empty()) return;
    // Withdraws ranks that were reported meanwhile: they are refused, too.
    SendWaiting(Membership());
    Refuse(&gathering_, CodeOf(end.code()), TextOf(end));
  } else if (starting()) {
    // Epoch 0 means that the start has failed before an epoch had a number.
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

}  // namespace maypole::worker
