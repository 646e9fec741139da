#include "coordinator/core/job_recovery.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

// The config of an epoch that another coordinator has begun.
Config ConfigOf(Config config, const proto::EpochStart& start) {
  config.fusion_threshold = start.fusion_threshold();
  config.stall_check = std::chrono::milliseconds(start.stall_check_ms());
  config.stall_shutdown = std::chrono::milliseconds(start.stall_shutdown_ms());
  config.checksums =
      static_cast<ChecksumMode>(std::min(start.checksums(), kMostChecksumMode));
  return config;
}

// Why the epoch of a node that has not heard of its end is over.
std::string WhyOver(const std::string& node, const proto::NodeState& state,
                    const Recovery::Epoch& last) {
  if (state.start().epoch() == last.start.epoch()) {
    return last.over.empty() ? "all ranks have left" : last.over;
  }
  return absl::StrCat("the job had gone on without node ", node, ", in epoch ",
                      last.start.epoch(),
                      ", before the coordinator was replaced");
}

}  // namespace

void JobRecovery::Await(Time now, SessionId session, const std::string& node) {
  if (!recovery_) {
    // A job that has continued without this node does not stop for it.
    if (nodes_.epoch() > 0 || finished_) return;
    recovery_.emplace(now + config_.resume_timeout);
  }
  recovery_->Await(now, session, node);
}

absl::Status JobRecovery::Take(SessionId session,
                               const proto::NodeState& state) {
  if (Has(session)) return recovery_->Take(session, state);
  absl::Status status = CheckNodeState(state);
  if (status.ok()) SendTooLate(session, state);
  return status;
}

void JobRecovery::SendTooLate(SessionId session,
                              const proto::NodeState& state) {
  last_epoch_said_ = std::max(last_epoch_said_, state.start().epoch());
  if (state.has_start() && !state.has_end()) {
    nodes_.SendEpochOver(
        session, state.start().epoch(),
        absl::StrCat("node ", nodes_[session].node,
                     " came back too late after the coordinator had been "
                     "replaced"));
  }
  nodes_.SendRecovered(session);
}

JobRecovery::Result JobRecovery::Finish(uint64_t* decisions) {
  const Recovery recovery = *std::exchange(recovery_, std::nullopt);
  finished_ = true;
  *decisions = std::max(*decisions, recovery.LastDecision());
  Result result;
  std::optional<Recovery::Epoch>& last = result.last;
  last = recovery.LastEpoch(SecondsText(config_.resume_timeout));
  if (last) nodes_.SetEpoch(std::max(nodes_.epoch(), last->start.epoch()));
  const bool all_left = last && last->left.size() == last->start.size();
  const bool runs = last && last->over.empty() && !all_left;
  std::vector<SessionId> told;
  if (runs) result.epoch = Continue(*last, *decisions, &told);
  for (const SessionId session : recovery.Sessions()) {
    const proto::NodeState* state = recovery.StateOf(session);
    // A node without a state is notified when it sends its state.
    if (state == nullptr || std::ranges::find(told, session) != told.end()) {
      continue;
    }
    if (state->has_start() && !state->has_end()) {
      nodes_.SendEpochOver(session, state->start().epoch(),
                           WhyOver(nodes_[session].node, *state, *last));
    }
    nodes_.SendRecovered(session);
  }
  nodes_.Info("job_recovered", " nodes=", recovery.Sessions().size(),
              " running=", runs ? 1 : 0);
  if (last) {
    last->states.clear();  // they are `recovery`'s
    if (!last->over.empty()) {
      nodes_.Warn("epoch_end", " reason=", LogValue(last->over));
    }
  }
  return result;
}

std::unique_ptr<CoordinatorEpoch> JobRecovery::Continue(
    const Recovery::Epoch& last, uint64_t decisions,
    std::vector<SessionId>* told) {
  std::vector<const proto::NodeState*> states(last.members.size(), nullptr);
  static const proto::NodeState kHasNotStarted;
  for (size_t i = 0; i < last.members.size(); ++i) {
    const SessionId session = last.members[i].session;
    // A node that has dropped the epoch no longer takes part in it.
    if (session == 0 ||
        (last.states[i] != nullptr && last.states[i]->has_end())) {
      continue;
    }
    states[i] = last.states[i] != nullptr ? last.states[i] : &kHasNotStarted;
    if (last.states[i] == nullptr) nodes_.CountStart(session);
    told->push_back(session);
  }
  std::vector<NodeMember> members = last.members;
  for (NodeMember& m : members) {
    if (m.session != 0) m.versions = nodes_[m.session].versions;
  }
  const proto::EpochStart& start = last.start;
  auto epoch = std::make_unique<CoordinatorEpoch>(
      start.epoch(),
      EpochSize{start.size(), start.min_size(), start.max_size()},
      std::move(members), ConfigOf(config_, start), nodes_.job(),
      nodes_.output());
  epoch->Restore(states, last.left, decisions);
  return epoch;
}

}  // namespace maypole::coordinator
