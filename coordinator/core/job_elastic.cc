// The part of Job for elastic jobs: passes the nodes' messages to Elastic
// (elastic.h), and tells the nodes what it decides.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/limits.h"
#include "coordinator/core/job.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

bool Job::IsElasticEpoch() const {
  return epoch_ != nullptr &&
         !epoch_->nodes().members().front().clients.empty();
}

bool Job::TakesElastic() const {
  return gathering_.empty() && (epoch_ == nullptr || IsElasticEpoch());
}

bool Job::TakesFixed() const { return !elastic_.active() && !IsElasticEpoch(); }

absl::Status Job::OnElasticReady(Time now, SessionId session,
                                 const proto::RanksReady& ready) {
  if (absl::Status sound = CheckElasticReady(ready); !sound.ok()) return sound;
  const Node& node = nodes_.at(session);
  if (ready.round() > node.round) {
    return InvalidArgument("ranks that are ready in round ", ready.round(),
                           ", the node has been sent ", node.round);
  }
  // The message has crossed with a start or a refusal: the node sends it again.
  if (ready.round() < node.round) return absl::OkStatus();
  if (aborted_ && !ready.members().empty()) {
    RefuseAborted(session);
    return absl::OkStatus();
  }
  if (!ready.members().empty() && !TakesElastic()) {
    RefuseMixed(session, true);
    return absl::OkStatus();
  }
  NodeMember member = MemberOf(session);
  absl::Status status = elastic_.SetWaiting(now, std::move(member), ready);
  out_->Info(LogPrefix("ranks_wait"), " node=", node.node, " host=", node.host,
             " waiting=", ready.members_size(), " of_all=", elastic_.waiting());
  if (!status.ok()) {
    RefuseWaiting(session, {}, status.code(), std::string(status.message()));
  }
  SendWanted();
  return absl::OkStatus();
}

void Job::RefuseMixed(SessionId session, bool elastic) {
  const Node& node = nodes_.at(session);
  RefuseWaiting(session, {}, absl::StatusCode::kInvalidArgument,
                absl::StrCat("the job cannot take the ranks of ",
                             NodeText(node.node, node.host), ": they are ",
                             elastic ? "elastic, the others are not"
                                     : "not elastic, the others are",
                             "; start all ranks of a job alike"));
}

void Job::RefuseWaiting(SessionId session, const std::vector<uint64_t>& clients,
                        absl::StatusCode code, const std::string& message) {
  out_->Warn(LogPrefix("ranks_refused"), " node=", nodes_.at(session).node,
             " reason=", LogValue(message));
  ++nodes_.at(session).round;
  proto::CoordinatorMessage m;
  m.mutable_epoch_end()->set_code(static_cast<int>(code));
  m.mutable_epoch_end()->set_message(Cut(message, kMaxErrorBytes));
  m.mutable_epoch_end()->mutable_clients()->Assign(clients.begin(),
                                                   clients.end());
  out_->messages.emplace_back(session, std::move(m));
}

void Job::SendWanted() {
  if (!IsElasticEpoch()) return;
  const std::pair<uint32_t, uint32_t> wanted(elastic_.NewRanksWanted(),
                                             elastic_.Leaving());
  if (wanted == wanted_ || epoch_->departures().AllLeft()) return;
  wanted_ = wanted;
  proto::CoordinatorMessage m;
  m.set_epoch(epoch_number_);
  m.mutable_membership_wanted()->set_new_ranks(wanted.first);
  m.mutable_membership_wanted()->set_leaving(wanted.second);
  for (size_t i = 0; i < epoch_->nodes().members().size(); ++i) {
    const SessionId session = epoch_->nodes().members()[i].session;
    if (!nodes_.contains(session) || epoch_->departures().LiveRanks(i).empty())
      continue;
    out_->messages.emplace_back(session, m);
  }
}

std::string Job::RunningText() const {
  if (epoch_ == nullptr) return "";
  std::vector<uint32_t> ranks;
  for (size_t i = 0; i < epoch_->nodes().members().size(); ++i) {
    const std::vector<uint32_t> live = epoch_->departures().LiveRanks(i);
    ranks.insert(ranks.end(), live.begin(), live.end());
  }
  std::string out = absl::StrCat("epoch ", epoch_number_, " is running with ",
                                 RanksText(ranks));
  if (ranks.size() >= elastic_.max_size()) {
    absl::StrAppend(&out, ", as many as the job may have");
  } else {
    absl::StrAppend(&out, ", which have not left it for another one");
  }
  return out;
}

void Job::OnElasticTime(Time now) {
  if (!elastic_.active() || recovery_) return;
  const Elastic::Verdict verdict =
      elastic_.OnTime(now, epoch_ != nullptr, RunningText());
  if (!verdict.left_behind.empty()) {
    out_->Count(ErrorKind::kStartTimeout);
    out_->Warn(
        LogPrefix("ranks_left_behind"), " reason=",
        LogValue(Cut(absl::StrCat(absl::StrJoin(verdict.left_behind, ", "),
                                  " did not call init() again within ",
                                  SecondsText(verdict.waited)),
                     kMaxErrorBytes)));
  }
  for (const Elastic::Refused& refused : verdict.refused) {
    if (refused.code == absl::StatusCode::kDeadlineExceeded) {
      out_->Count(ErrorKind::kStartTimeout);
    }
    RefuseWaiting(refused.session, refused.clients, refused.code, refused.why);
  }
  if (verdict.start) StartElastic();
  SendWanted();
}

void Job::StartElastic() {
  // The new epoch gets a number that none of its processes has seen before.
  epoch_number_ =
      std::max({epoch_number_, said_epoch_, elastic_.LastEpochSaid()});
  std::vector<NodeMember> members = elastic_.Begin(epoch_number_ + 1);
  wanted_ = {};
  uint32_t size = 0;
  for (const NodeMember& m : members)
    size += static_cast<uint32_t>(m.ranks.size());
  for (NodeMember& m : members) {
    // Add() cannot fail: the ranks are numbered without gaps, and Elastic has
    // checked that the members agree.
    (void)gathering_.Add(std::move(m), size);
  }
  StartIfComplete();
}

void Job::StopElastic(const std::string& message) {
  for (const SessionId session : elastic_.WaitingSessions()) {
    RefuseWaiting(session, {}, absl::StatusCode::kAborted, message);
  }
  elastic_.Clear();
}

}  // namespace maypole::coordinator
