#include "coordinator/dashboard/page_data.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/types.h"

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
  return {{"node", n.node()},
          {"host", n.host()},
          {"connected", n.connected()},
          {"sent", std::round(n.sent_per_second())},
          {"received", std::round(n.received_per_second())},
          {"ranks", std::move(ranks)}};
}

Json PendingData(const proto::PendingOperation& op) {
  const auto kind = static_cast<Kind>(op.kind());
  std::string what =
      absl::StrCat(IsKnown(kind) ? std::string(Name(kind)) : "operation", " '",
                   op.name(), "'");
  if (op.process_set() > 0) {
    absl::StrAppend(&what, " of process set ", op.process_set());
  }
  Json missing = Json::array();
  for (const std::string& node : op.missing_nodes()) missing.push_back(node);
  return {{"what", std::move(what)},
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
          {"waiting", s.waiting()}};
}

// As maypolectl's: by the smallest rank.
std::vector<const proto::NodeStatus*> ByRank(const proto::JobStatus& job) {
  std::vector<const proto::NodeStatus*> nodes;
  for (const proto::NodeStatus& node : job.nodes()) nodes.push_back(&node);
  const auto first = [](const proto::NodeStatus* n) {
    return n->ranks().empty()
               ? UINT32_MAX
               : *std::min_element(n->ranks().begin(), n->ranks().end());
  };
  std::stable_sort(nodes.begin(), nodes.end(),
                   [&](auto* a, auto* b) { return first(a) < first(b); });
  return nodes;
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
          {"pending", std::move(pending)},
          {"pendingCount", job.pending_operations()},
          {"nodes", std::move(nodes)}};
}

// Names come from users' programs, and may be anything.
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
