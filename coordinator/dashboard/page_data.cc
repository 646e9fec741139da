#include "coordinator/dashboard/page_data.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/job_status/job_status.h"

namespace maypole::coordinator {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxPendingShown = 8;

int StateNumber(const std::string& state) {
  if (state == "waiting") return 1;
  if (state == "late") return 2;
  return state == "left" ? 3 : 0;
}

int Percent(bool has, double part) {
  return has ? static_cast<int>(std::lround(100 * part)) : -1;
}

Json RankData(const proto::RankStatus& r) {
  return Json::array({r.unnumbered() ? Json() : Json(r.rank()),
                      StateNumber(r.state()), Percent(r.has_late(), r.late()),
                      Percent(r.has_waiting(), r.waiting()), r.pid()});
}

Json NodeData(const proto::NodeStatus& n) {
  Json ranks = Json::array();
  for (const proto::RankStatus& r : n.rank_status()) {
    ranks.push_back(RankData(r));
  }
  Json gpus = Json::array();
  for (const proto::GpuStatus& gpu : n.gpus()) {
    gpus.push_back(
        {gpu.uuid(), gpu.used_bytes(), gpu.total_bytes(),
         gpu.has_busy_percent() ? Json(gpu.busy_percent()) : Json()});
  }
  return {{"node", n.node()},
          {"host", n.host()},
          {"connected", n.connected()},
          {"sent", std::round(n.sent_per_second())},
          {"received", std::round(n.received_per_second())},
          {"gpus", std::move(gpus)},
          {"ranks", std::move(ranks)}};
}

Json PendingData(const proto::PendingOperation& op) {
  Json missing = Json::array();
  for (const std::string& node : op.missing_nodes()) missing.push_back(node);
  return {{"what", OperationText(op)},
          {"more", op.missing() - op.missing_nodes_size()},
          {"missing", std::move(missing)}};
}

Json StatsData(const proto::JobStatus& job) {
  if (!job.has_stats()) return nullptr;
  const proto::JobStats& s = job.stats();
  return {{"steps", s.steps_per_second()},
          {"operations", s.operations_per_second()},
          {"bytes", s.bytes_per_second()},
          {"sent", s.sent_per_second()},
          {"perRun", s.operations_per_run()},
          {"waiting", s.waiting()}};
}

Json TimelineData(const proto::JobStatus& job) {
  if (!job.has_timeline()) return nullptr;
  const proto::TimelineStatus& t = job.timeline();
  return {{"state", t.state()},
          {"path", t.path()},
          {"rank", t.rank()},
          {"host", t.host()},
          {"error", t.error()}};
}

Json JobData(const proto::JobStatus& job) {
  Json nodes = Json::array();
  for (const proto::NodeStatus* n : ByRank(job)) nodes.push_back(NodeData(*n));
  Json pending = Json::array();
  for (const proto::PendingOperation& op : job.pending()) {
    if (op.missing() > 0 && pending.size() < kMaxPendingShown) {
      pending.push_back(PendingData(op));
    }
  }
  return {{"job", job.job()},
          {"state", job.state()},
          {"seconds", job.state_seconds()},
          {"epoch", job.epoch()},
          {"size", job.size()},
          {"elastic", job.elastic()},
          {"tier", job.tier()},
          {"left", job.schedule_ended()},
          {"stats", StatsData(job)},
          {"timeline", TimelineData(job)},
          {"pending", std::move(pending)},
          {"pendingCount", job.pending_operations()},
          {"nodes", std::move(nodes)}};
}

// Names come from users' programs, and may have any bytes.
std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string ErrorData(absl::string_view text) {
  return Text({{"error", std::string(text)}});
}

std::string PageData(const proto::StatusReply& status,
                     const std::vector<EventRing::Event>& events) {
  Json jobs = Json::array();
  for (const proto::JobStatus& job : status.jobs()) {
    jobs.push_back(JobData(job));
  }
  Json lines = Json::array();
  for (const EventRing::Event& e : events) {
    lines.push_back({{"number", e->number()},
                     {"time", e->unix_seconds()},
                     {"level", e->level()},
                     {"job", e->job()},
                     {"kind", e->kind()},
                     {"text", e->text()}});
  }
  return Text({{"version", status.version()},
               {"uptime", status.uptime_seconds()},
               {"jobs", std::move(jobs)},
               {"events", std::move(lines)}});
}

}  // namespace maypole::coordinator
