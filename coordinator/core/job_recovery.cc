// The part of Job that finds out what a coordinator before this one knew
// (recovery.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

Config ConfigOf(Config config, const proto::EpochStart& start) {
  config.fusion_threshold = start.fusion_threshold();
  config.stall_check = std::chrono::milliseconds(start.stall_check_ms());
  config.stall_shutdown = std::chrono::milliseconds(start.stall_shutdown_ms());
  config.checksums =
      static_cast<ChecksumMode>(std::min(start.checksums(), kMostChecksumMode));
  return config;
}

}  // namespace

void Job::Await(Time now, SessionId session, const std::string& node) {
  if (!recovery_) {
    // A job that has gone on without this node does not stop for it.
    if (epoch_number_ > 0 || recovered_) return;
    recovery_.emplace(now + config_.resume_timeout);
  }
  recovery_->Await(session, node);
}

absl::Status Job::OnNodeState(SessionId session,
                              const proto::NodeState& state) {
  if (!recovery_ || !recovery_->Has(session)) {
    if (absl::Status s = CheckNodeState(state); !s.ok()) return s;
    TellTooLate(session, state);
    return absl::OkStatus();
  }
  absl::Status status = recovery_->Take(session, state);
  if (status.ok()) FinishRecoveryIfComplete();
  return status;
}

void Job::FinishRecoveryIfComplete() {
  if (recovery_ && recovery_->Complete()) FinishRecovery();
}

void Job::FinishRecovery() {
  const Recovery recovery = *std::exchange(recovery_, std::nullopt);
  recovered_ = true;
  decisions_ = std::max(decisions_, recovery.LastDecision());
  const auto last = recovery.LastEpoch(SecondsText(config_.resume_timeout));
  if (last) epoch_number_ = std::max(epoch_number_, last->start.epoch());
  if (last && !last->members.front().clients.empty()) {
    elastic_.Restore(last->start, last->members);
    wanted_ = {UINT32_MAX, UINT32_MAX};  // the nodes may have been told any
  }
  const bool all_left = last && last->left.size() == last->start.size();
  const bool runs = last && last->over.empty() && !all_left;
  std::string over = "all ranks have left";
  if (runs) {
    over = absl::StrCat("the job has gone on without this node, in epoch ",
                        last->start.epoch());
  } else if (last && !last->over.empty()) {
    over = last->over;
  }
  std::vector<SessionId> told;
  if (runs) told = ContinueEpoch(*last);
  for (const SessionId session : recovery.Sessions()) {
    const proto::NodeState* state = recovery.StateOf(session);
    // Without a state, the node is told when it sends it.
    if (state == nullptr ||
        std::find(told.begin(), told.end(), session) != told.end()) {
      continue;
    }
    if (state->has_start() && !state->has_end()) {
      TellEpochOver(session, state->start().epoch(), over);
    }
    proto::CoordinatorMessage recovered;
    recovered.mutable_recovered();
    out_->messages.emplace_back(session, std::move(recovered));
  }
  out_->Info(LogPrefix("job_recovered"), " nodes=", recovery.Sessions().size(),
             " running=", runs ? 1 : 0);
  if (!last || last->over.empty()) return;
  out_->Warn(LogPrefix("epoch_end"), " reason=", LogValue(last->over));
}

std::vector<SessionId> Job::ContinueEpoch(const Recovery::Epoch& last) {
  std::vector<SessionId> told;
  std::vector<const proto::NodeState*> states(last.members.size(), nullptr);
  static const proto::NodeState kHasNotStarted;
  for (size_t i = 0; i < last.members.size(); ++i) {
    const SessionId session = last.members[i].session;
    // A node that has dropped the epoch has no part in it any more.
    if (session == 0 ||
        (last.states[i] != nullptr && last.states[i]->has_end()))
      continue;
    states[i] = last.states[i] != nullptr ? last.states[i] : &kHasNotStarted;
    if (last.states[i] == nullptr) ++nodes_.at(session).round;
    told.push_back(session);
  }
  std::vector<NodeMember> members = last.members;
  for (NodeMember& m : members) {
    if (m.session != 0) m.versions = nodes_.at(m.session).versions;
  }
  const proto::EpochStart& start = last.start;
  epoch_ = std::make_unique<CoordinatorEpoch>(
      start.epoch(),
      EpochSize{start.size(), start.min_size(), start.max_size()},
      std::move(members), ConfigOf(config_, start), id_, out_);
  epoch_->Restore(states, last.left, decisions_);
  return told;
}

void Job::TellTooLate(SessionId session, const proto::NodeState& state) {
  said_epoch_ = std::max(said_epoch_, state.start().epoch());
  if (state.has_start() && !state.has_end()) {
    TellEpochOver(session, state.start().epoch(),
                  absl::StrCat("node ", nodes_.at(session).node,
                               " came back too late after the coordinator had "
                               "been replaced"));
  }
  proto::CoordinatorMessage recovered;
  recovered.mutable_recovered();
  out_->messages.emplace_back(session, std::move(recovered));
}

void Job::TellEpochOver(SessionId session, uint64_t epoch,
                        const std::string& why) {
  proto::CoordinatorMessage m;
  m.set_epoch(epoch);
  m.mutable_epoch_end()->set_code(static_cast<int>(absl::StatusCode::kAborted));
  m.mutable_epoch_end()->set_message(Cut(why, kMaxErrorBytes));
  out_->messages.emplace_back(session, std::move(m));
}

}  // namespace maypole::coordinator
