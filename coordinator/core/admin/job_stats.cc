#include "coordinator/core/admin/job_stats.h"

#include <algorithm>
#include <utility>

#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

double Seconds(const proto::NodeStats& before, const proto::NodeStats& last) {
  return static_cast<double>(last.time_ms() - before.time_ms()) / 1000;
}

// The counter's growth per second.
double Rate(uint64_t before, uint64_t last, double seconds) {
  return last <= before ? 0 : static_cast<double>(last - before) / seconds;
}

}  // namespace

bool JobStats::Watch(Time now) {
  if (told_ && now - *told_ < kWatchAgain) return false;
  told_ = now;
  return true;
}

absl::Status JobStats::Take(Time now, size_t node, size_t ranks,
                            const proto::NodeStats& message) {
  if (message.waited_ns_size() != static_cast<int>(ranks)) {
    return InvalidArgument("statistics of ", message.waited_ns_size(),
                           " ranks; the node has ", ranks);
  }
  if (message.time_ms() < 0 ||
      message.time_ms() > static_cast<int64_t>(kMaxNumber)) {
    return InvalidArgument("statistics at ", message.time_ms(), " ms; 0 to ",
                           kMaxNumber, " are allowed");
  }
  if (message.gpus_size() > static_cast<int>(kMaxGpus)) {
    return InvalidArgument("statistics of ", message.gpus_size(), " GPUs; ",
                           kMaxGpus, " are allowed");
  }
  for (const proto::GpuLoad& gpu : message.gpus()) {
    if (gpu.uuid().size() == kGpuUuidBytes) continue;
    return InvalidArgument("statistics of a GPU whose UUID has ",
                           gpu.uuid().size(), " bytes; ", kGpuUuidBytes,
                           " are expected");
  }
  Node& n = nodes_[node];
  n.before = std::exchange(n.last, message);
  n.at = now;
  return absl::OkStatus();
}

const JobStats::Node* JobStats::Find(Time now, size_t node) const {
  const Node& n = nodes_[node];
  const bool has = n.before && n.last && now - n.at <= kStatsAge &&
                   n.last->time_ms() > n.before->time_ms();
  return has ? &n : nullptr;
}

void JobStats::Fill(Time now, size_t node, proto::NodeStatus* status) const {
  const Node* const n = Find(now, node);
  if (n == nullptr) return;
  const double seconds = Seconds(*n->before, *n->last);
  status->set_sent_per_second(
      Rate(n->before->sent(), n->last->sent(), seconds));
  status->set_received_per_second(
      Rate(n->before->received(), n->last->received(), seconds));
  for (const proto::GpuLoad& load : n->last->gpus()) {
    proto::GpuStatus* const gpu = status->add_gpus();
    gpu->set_uuid(UuidText(load.uuid()));
    gpu->set_used_bytes(load.used_bytes());
    gpu->set_total_bytes(load.total_bytes());
    if (load.has_busy_percent()) {
      gpu->set_busy_percent(std::min(load.busy_percent(), 100u));
    }
  }
  for (int i = 0; i < status->rank_status_size(); ++i) {
    if (i >= n->last->waited_ns_size() || i >= n->before->waited_ns_size()) {
      return;
    }
    const double slept =
        1e-9 * Rate(n->before->waited_ns(i), n->last->waited_ns(i), seconds);
    status->mutable_rank_status(i)->set_waiting(std::min(slept, 1.0));
  }
}

void JobStats::Fill(Time now, proto::JobStatus* status) const {
  proto::JobStats stats;
  double steps = 0, operations = 0, runs = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node* const n = Find(now, i);
    if (n == nullptr) continue;
    const double seconds = Seconds(*n->before, *n->last);
    const auto rate = [&](auto counter) {
      return Rate((*n->before.*counter)(), (*n->last.*counter)(), seconds);
    };
    using Stats = proto::NodeStats;
    stats.set_nodes(stats.nodes() + 1);
    steps += rate(&Stats::steps);
    operations += rate(&Stats::operations);
    runs += rate(&Stats::runs);
    stats.set_operations_per_second(
        std::max(stats.operations_per_second(), rate(&Stats::operations)));
    stats.set_bytes_per_second(
        std::max(stats.bytes_per_second(), rate(&Stats::bytes)));
    stats.set_sent_per_second(stats.sent_per_second() + rate(&Stats::sent));
  }
  if (stats.nodes() == 0) return;
  stats.set_steps_per_second(steps / stats.nodes());
  if (runs > 0) stats.set_operations_per_run(operations / runs);
  double most = 0, all = 0;
  size_t ranks = 0;
  for (const proto::NodeStatus& node : status->nodes()) {
    for (const proto::RankStatus& rank : node.rank_status()) {
      if (!rank.has_waiting()) continue;
      ++ranks;
      all += rank.waiting();
      most = std::max(most, rank.waiting());
    }
  }
  for (proto::NodeStatus& node : *status->mutable_nodes()) {
    for (proto::RankStatus& rank : *node.mutable_rank_status()) {
      if (rank.has_waiting()) rank.set_late(most - rank.waiting());
    }
  }
  if (ranks > 0) stats.set_waiting(all / static_cast<double>(ranks));
  *status->mutable_stats() = std::move(stats);
}

}  // namespace maypole::coordinator
