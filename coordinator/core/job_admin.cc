// The status of a job for the operator, and Job::Abort().
#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/job.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

const char* Name(Job::State state) {
  switch (state) {
    case Job::State::kStarting:
      return "starting";
    case Job::State::kRunning:
      return "running";
    case Job::State::kEnded:
      return "ended";
  }
  return "";
}

// The rank's existing entry if it has left its epoch; otherwise a new one.
proto::RankStatus* EntryOf(
    proto::NodeStatus* node,
    const std::function<bool(const proto::RankStatus&)>& same) {
  for (proto::RankStatus& r : *node->mutable_rank_status()) {
    if (r.state() == "left" && same(r)) return &r;
  }
  return node->add_rank_status();
}

void AddWaiting(const NodeMember& member, proto::NodeStatus* node) {
  for (size_t i = 0; i < member.ranks.size(); ++i) {
    const uint32_t rank = member.ranks[i];
    const int known = node->rank_status_size();
    proto::RankStatus* r =
        EntryOf(node, [rank](const auto& s) { return s.rank() == rank; });
    if (node->rank_status_size() > known) node->add_ranks(rank);
    r->set_rank(rank);
    r->set_pid(i < member.pids.size() ? member.pids[i] : 0);
    r->set_state("waiting");
  }
}

void AddWaiting(const std::vector<int64_t>& pids, proto::NodeStatus* node) {
  for (const int64_t pid : pids) {
    const int known = node->rank_status_size();
    proto::RankStatus* r =
        EntryOf(node, [pid](const auto& s) { return s.pid() == pid; });
    r->set_unnumbered(node->rank_status_size() > known);
    r->set_pid(pid);
    r->set_state("waiting");
  }
}

}  // namespace

Job::State Job::state() const {
  if (epoch_ != nullptr) return State::kRunning;
  if (!gathering_.empty() || elastic_.waiting() > 0) return State::kStarting;
  return epoch_number_ == 0 && !aborted_ ? State::kStarting : State::kEnded;
}

void Job::NoteState(Time now) {
  const std::pair<State, uint64_t> seen(state(), epoch_number_);
  if (seen_ == seen) return;
  seen_ = seen;
  seen_since_ = now;
}

void Job::FillStatus(Time now, proto::JobStatus* status) const {
  status->set_job(id_);
  status->set_epoch(epoch_number_);
  status->set_state(Name(state()));
  status->set_state_seconds(
      std::chrono::duration<double>(now - seen_since_).count());
  status->set_elastic(elastic_.active() || IsElasticEpoch());
  status->set_size(gathering_.empty() ? elastic_.waiting() : gathering_.size());
  if (epoch_ != nullptr) epoch_->FillStatus(status);
  for (const auto& [session, node] : nodes_) {
    FillStatus(now, session, node, status->add_nodes());
  }
  if (epoch_ != nullptr) epoch_->FillStats(now, status);
}

absl::StatusOr<proto::TimelineStatus> Job::RecordTimeline(
    bool stop, absl::string_view who) {
  if (epoch_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job does not run: it is ", Name(state())));
  }
  if (absl::Status s = epoch_->timeline().Record(stop); !s.ok()) {
    return s;
  }
  proto::JobStatus status;
  epoch_->timeline().FillStatus(&status);
  const proto::TimelineStatus& timeline = status.timeline();
  out_->Info(LogPrefix(stop ? "timeline_stopped" : "timeline_started"),
             " rank=", timeline.rank(), " host=", timeline.host(),
             " path=", LogValue(timeline.path()), " who=", LogValue(who));
  return timeline;
}

void Job::FillStatus(Time now, SessionId session, const Node& node,
                     proto::NodeStatus* status) const {
  status->set_node(node.node);
  status->set_host(node.host);
  status->set_address(node.address);
  if (epoch_ != nullptr) {
    if (const std::optional<size_t> i = epoch_->nodes().IndexOf(session)) {
      epoch_->FillStatus(now, *i, status);
    }
  }
  const NodeMember* next = gathering_.Find(session);
  if (next == nullptr) next = gathering_.FindWaiting(session);
  if (next != nullptr) AddWaiting(*next, status);
  AddWaiting(elastic_.WaitingPids(session), status);
}

uint32_t Job::Abort(Time now, const std::string& message) {
  size_t told = live_ranks() + elastic_.waiting();
  gathering_.TakeWaitingIn();
  for (const NodeMember& m : gathering_.members()) told += m.ranks.size();
  aborted_ = Cut(message, kMaxErrorBytes);
  out_->Warn(LogPrefix("job_aborted"), " ranks=", told,
             " reason=", LogValue(message));
  Stop(message);
  // Ranks that come later are refused, without another failed start.
  failed_start_.reset();
  NoteState(now);
  return static_cast<uint32_t>(told);
}

void Job::RefuseAborted(SessionId session) {
  RefuseWaiting(session, {}, absl::StatusCode::kAborted, *aborted_);
}

}  // namespace maypole::coordinator
