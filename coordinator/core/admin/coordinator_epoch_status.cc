// The status of an epoch for the operator.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/wire/utf8.h"
#include "coordinator/core/coordinator_epoch.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

void CoordinatorEpoch::FillStatus(proto::JobStatus* status) const {
  status->set_size(size_);
  status->set_runs(runs_);
  status->set_operations(operations_);
  for (const auto& [rank, held] : stragglers_.late_for()) {
    if (!HasLeft(rank)) status->add_late_ranks(rank);
  }
  if (members_.size() > 1) {
    status->set_tier(frozen() ? "frozen" : "negotiated");
    status->set_schedules(schedule_);
    if (!frozen()) {
      status->set_schedule_ended(ToUtf8(schedule_ended_.text()));
    }
  }
  if (timeline_.last().number() > 0) FillTimeline(status->mutable_timeline());
  status->set_pending_operations(static_cast<uint32_t>(table_.pending()));
  for (const NegotiatedOperation* op : table_.Pending()) {
    if (status->pending_size() >= kMaxStatusPending) break;
    proto::PendingOperation* p = status->add_pending();
    p->set_name(op->identity.name());
    p->set_kind(op->identity.kind());
    p->set_process_set(op->identity.process_set());
    for (const size_t i : op->set->nodes) {
      if (op->nodes[i].present) {
        p->set_generation(op->nodes[i].generation);
        continue;
      }
      p->set_missing(p->missing() + 1);
      if (p->missing_nodes_size() >= kMaxStatusMissing) continue;
      p->add_missing_nodes(members_[i].node);
    }
  }
}

void CoordinatorEpoch::FillTimeline(proto::TimelineStatus* status) const {
  const proto::Timeline& t = timeline_.last();
  status->set_state(t.on() ? "on" : t.closing() ? "closing" : "off");
  status->set_path(ToUtf8(t.path()));
  status->set_rank(t.rank());
  status->set_host(members_[t.node()].host);
  status->set_error(ToUtf8(timeline_.error()));
}

absl::Status CoordinatorEpoch::RecordTimeline(absl::string_view job, bool stop,
                                              JobOutput* out) {
  TimelineRelay::Messages messages;
  absl::Status status;
  if (stop) {
    status = timeline_.Stop(&messages);
  } else {
    status = StartTimeline(job, &messages);
  }
  SendTimeline(std::move(messages), out);
  return status;
}

// The process id, and the numbers of epoch and timeline, make the name one that
// the rank's directory does not have yet.
absl::Status CoordinatorEpoch::StartTimeline(
    absl::string_view job, TimelineRelay::Messages* messages) {
  std::optional<uint32_t> first;
  size_t node = 0;
  int64_t pid = 0;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!connected_[i] || !Knows(i, kNodeStats)) continue;
    for (size_t k = 0; k < members_[i].ranks.size(); ++k) {
      const uint32_t rank = members_[i].ranks[k];
      if (HasLeft(rank) || (first && *first < rank)) continue;
      first = rank;
      node = i;
      pid = k < members_[i].pids.size() ? members_[i].pids[k] : 0;
    }
  }
  if (!first) {
    return absl::FailedPreconditionError(
        "no rank is left, on a node whose executor knows how to start a "
        "timeline, that could write its file");
  }
  return timeline_.Start(
      node, *first,
      absl::StrCat("maypole-timeline-", job, "-", pid, "-", number_, "-",
                   timeline_.last().number() + 1, ".json"),
      messages);
}

// Not through ToNode(), as the timeline's messages.
void CoordinatorEpoch::Watch(Time now, JobOutput* out) {
  if (!stats_.Watch(now)) return;
  proto::CoordinatorMessage message;
  message.mutable_watch_stats()->set_epoch(number_);
  message.mutable_watch_stats()->set_every_ms(kStatsInterval.count());
  message.mutable_watch_stats()->set_for_ms(kWatchTime.count());
  const Outgoing all(message);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!connected_[i] || !Knows(i, kNodeStats)) continue;
    out->messages.emplace_back(members_[i].session, all);
  }
}

void CoordinatorEpoch::FillStatus(Time now, size_t node,
                                  proto::NodeStatus* status) const {
  const NodeMember& member = members_[node];
  status->mutable_ranks()->Assign(member.ranks.begin(), member.ranks.end());
  for (size_t i = 0; i < member.ranks.size(); ++i) {
    proto::RankStatus* r = status->add_rank_status();
    r->set_rank(member.ranks[i]);
    r->set_pid(i < member.pids.size() ? member.pids[i] : 0);
    for (auto gpu = rank_gpus_.lower_bound({r->rank(), ""});
         gpu != rank_gpus_.end() && gpu->first.first == r->rank(); ++gpu) {
      proto::GpuUse* const use = r->add_gpus();
      use->set_uuid(UuidText(gpu->second.uuid()));
      use->set_bytes(gpu->second.bytes());
    }
    const auto late = stragglers_.late_for().find(member.ranks[i]);
    if (HasLeft(member.ranks[i])) {
      r->set_state("left");
    } else if (late == stragglers_.late_for().end()) {
      r->set_state("running");
    } else {
      r->set_state("late");
      r->mutable_late_for()->Assign(late->second.begin(), late->second.end());
    }
  }
  stats_.Fill(now, node, status);
}

}  // namespace maypole::coordinator
