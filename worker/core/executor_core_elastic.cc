// ExecutorCore: elastic jobs. Ranks are reported as they arrive; the
// coordinator decides which of them take part in an epoch.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/executor_core.h"

namespace maypole::worker {
namespace {

// After so many failed starts in a row because of this node's network, its
// ranks are refused.
constexpr int kMaxFailedStarts = 3;

}  // namespace

absl::Status ExecutorCore::AdmitElastic(ClientId client,
                                        const session::Hello& hello,
                                        int visible_pid) {
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
  absl::Status status = gathering_.Add(client, hello, visible_pid);
  if (!status.ok()) return status;
  EndWatches([&](const Returning& r) { return r.visible_pid == visible_pid; });
  return status;
}

void ExecutorCore::SayWaiting() {
  told_of_elastic_ = true;
  proto::ExecutorMessage message;
  proto::RanksReady* ready = message.mutable_ranks_ready();
  ready->set_elastic(true);
  ready->set_min_size(static_cast<uint32_t>(gathering_.min_size()));
  ready->set_max_size(static_cast<uint32_t>(gathering_.max_size()));
  ready->set_round(round_);
  for (const auto& [arrival, m] : gathering_.members()) {
    proto::ElasticMember* member = ready->add_members();
    member->set_client(m.client);
    member->set_pid(m.pid);
    if (m.last_epoch == 0) continue;
    member->set_epoch(m.last_epoch);
    member->set_rank(static_cast<uint32_t>(m.last_rank));
  }
  AddFacts(gathering_, ready);
  Send(std::move(message));
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
  const std::set<ClientId> once(start.clients().begin(), start.clients().end());
  if (phase_ != Phase::kIdle ||
      once.size() != static_cast<size_t>(start.clients_size()) ||
      start.node_index() >= static_cast<uint32_t>(start.nodes_size()) ||
      start.nodes(start.node_index()).ranks_size() != start.clients_size()) {
    SendFailed(start.epoch(),
               absl::InternalError("the EpochStart message is invalid"));
    return false;
  }
  const auto& own = start.nodes(start.node_index()).ranks();
  const std::vector<ClientId> clients(start.clients().begin(),
                                      start.clients().end());
  for (size_t i = 0; i < clients.size(); ++i) {
    if (gathering_.Find(clients[i]) != nullptr) continue;
    // The client has disconnected meanwhile, so this epoch cannot start.
    proto::ExecutorMessage message;
    message.set_epoch(start.epoch());
    proto::RankGone* gone = message.mutable_rank_gone();
    gone->set_rank(own[static_cast<int>(i)]);
    gone->set_how("it ended before the epoch began");
    NoteEpoch(start);
    SendGone(std::move(message));
    NoteEnd(Code::kAborted, "the start has failed");
    SayWaiting();
    return false;
  }
  members_ = gathering_.TakeOut(clients, {own.begin(), own.end()},
                                static_cast<int>(start.size()));
  phase_ = Phase::kReady;
  if (!gathering_.empty()) SayWaiting();
  return true;
}

void ExecutorCore::RefuseWaiting(const proto::EpochEnd& end) {
  std::vector<ClientId> refused(end.clients().begin(), end.clients().end());
  if (refused.empty()) {
    for (const auto& [arrival, m] : gathering_.members()) {
      refused.push_back(m.client);
    }
  }
  for (const ClientId client : refused) {
    if (gathering_.Find(client) == nullptr) continue;
    gathering_.Remove(client);
    actions_.push_back(RefuseClient{client, CodeOf(end.code()), TextOf(end)});
  }
  if (!gathering_.empty()) SayWaiting();
}

void ExecutorCore::WaitAgain() {
  NoteEnd(Code::kAborted, "the start has failed");
  gathering_.TakeBack(std::exchange(members_, Membership()));
  phase_ = Phase::kIdle;
  if (epoch_) actions_.push_back(DropEpoch{});
  epoch_.reset();
  SayWaiting();
}

void ExecutorCore::StartFailedHere(const absl::Status& status) {
  SendFailed(epoch_number(), status);
  if (members_.elastic() && ++failed_starts_ < kMaxFailedStarts) {
    return WaitAgain();
  }
  failed_starts_ = 0;
  FailStart(Code::kUnavailable, std::string(status.message()));
}

void ExecutorCore::KeepWatch(const LocalMember& m, bool returns) {
  Returning& watch = returning_[m.client];
  watch = {epoch_number(), m.rank, m.visible_pid, {}};
  // Other ranks may wait longer for this one than its own start timeout.
  if (returns) {
    watch.until_ms =
        now_ms_ + std::max(m.start_timeout_ms, options_.start_timeout_ms);
  }
  actions_.push_back(KeepWatching{m.client});
}

void ExecutorCore::OnProcessEnded(ClientId client) {
  const auto it = returning_.find(client);
  if (it == returning_.end()) return;
  const bool has_finished = !it->second.until_ms;
  if (has_finished) {
    returning_.erase(it);
    return;
  }
  proto::ExecutorMessage message;
  message.set_epoch(it->second.epoch);
  proto::RankGone* gone = message.mutable_rank_gone();
  gone->set_rank(static_cast<uint32_t>(it->second.rank));
  gone->set_how("its process has ended");
  SendGone(std::move(message));
  returning_.erase(it);
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

}  // namespace maypole::worker
