// The status of an epoch for the operator.
#include <string>

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
    if (!frozen()) status->set_schedule_ended(schedule_ended_.text());
  }
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
