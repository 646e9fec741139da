#include "client/ctl/views.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"
#include "common/job_status/job_status.h"

namespace maypole::ctl {
namespace {

using Align = Table::Align;

std::string NumberOrDash(uint64_t n) { return n == 0 ? "-" : absl::StrCat(n); }

std::vector<uint64_t> RanksOf(const proto::NodeStatus& node) {
  return {node.ranks().begin(), node.ranks().end()};
}

std::string SizeText(const proto::JobStatus& job) {
  return job.elastic() ? absl::StrCat(job.size(), " elastic")
                       : absl::StrCat(job.size());
}

// --- status ------------------------------------------------------------------

struct NodeSum {
  std::string host;
  std::string address;
  size_t jobs = 0;
  size_t ranks = 0;
  std::set<std::string> notes;
};

std::map<std::string, NodeSum> Nodes(const proto::StatusReply& reply) {
  std::map<std::string, NodeSum> nodes;
  for (const proto::JobStatus& job : reply.jobs()) {
    for (const proto::NodeStatus& n : job.nodes()) {
      NodeSum& sum = nodes[n.node()];
      sum.host = n.host();
      sum.address = n.address();
      ++sum.jobs;
      sum.ranks += n.ranks_size();
      if (!n.connected()) {
        sum.notes.insert(
            absl::StrCat("no connection from its executor of ", job.job()));
      }
    }
  }
  for (const std::string& node : reply.drained_nodes()) {
    nodes[node].notes.insert("drained");
  }
  return nodes;
}

std::string NodesTable(const std::map<std::string, NodeSum>& nodes,
                       size_t width) {
  Table table({{"NODE"},
               {"HOST"},
               {"ADDRESS"},
               {"JOBS", Align::kRight},
               {"RANKS", Align::kRight},
               {"NOTE"}});
  size_t hidden = 0;
  for (const auto& [name, n] : nodes) {
    if (nodes.size() > kMaxNodeLines && n.notes.empty()) {
      ++hidden;
      continue;
    }
    table.Add({name, n.host, n.address, NumberOrDash(n.jobs),
               NumberOrDash(n.ranks), absl::StrJoin(n.notes, ", ")});
  }
  std::string out = table.empty() ? "" : "\n" + table.Text(width);
  if (hidden > 0) {
    absl::StrAppend(&out, table.empty() ? "\n" : "",
                    table.empty() ? "" : "and ", Count(hidden, "node"),
                    " without a note; see: maypolectl ranks\n");
  }
  return out;
}

std::string Where(const proto::JobStatus& job, uint32_t rank) {
  for (const proto::NodeStatus& n : job.nodes()) {
    for (const proto::RankStatus& r : n.rank_status()) {
      if (r.unnumbered() || r.rank() != rank) continue;
      return absl::StrCat(" (node ", n.node(), ", pid ", r.pid(), ")");
    }
  }
  return "";
}

std::vector<std::string> HeldUp(const proto::JobStatus& job, uint32_t rank) {
  for (const proto::NodeStatus& n : job.nodes()) {
    for (const proto::RankStatus& r : n.rank_status()) {
      if (r.unnumbered() || r.rank() != rank) continue;
      return {r.late_for().begin(), r.late_for().end()};
    }
  }
  return {};
}

// Why a job has left the frozen tier; empty if it is in it or never was.
std::string WhyNegotiated(const proto::JobStatus& job) {
  if (job.schedule_ended().empty()) return "";
  return absl::StrCat(job.job(), ": has left the frozen tier (",
                      Printable(job.schedule_ended()), "), schedule ",
                      job.schedules());
}

// "it leads (term 7); standbys: b:1, c:1"; empty if it is the only coordinator.
std::string RoleText(const proto::StatusReply& reply,
                     const std::vector<OtherCoordinator>& others) {
  if (reply.role().empty()) return "";
  if (reply.role() == kStandby) {
    return reply.leader().empty()
               ? "it is a standby, and no coordinator leads now"
               : absl::StrCat("it is a standby; ", Printable(reply.leader()),
                              " leads (term ", reply.term(), ")");
  }
  std::vector<std::string> standbys;
  for (const OtherCoordinator& other : others) {
    if (other.note == kStandby) standbys.push_back(other.address);
  }
  return absl::StrCat(
      "it leads (term ", reply.term(), ")",
      standbys.empty()
          ? ""
          : absl::StrCat("; standbys: ", absl::StrJoin(standbys, ", ")));
}

}  // namespace

std::string Trouble(const proto::JobStatus& job) {
  std::string out;
  if (job.late_ranks_size() > 0) {
    const uint32_t first = job.late_ranks(0);
    const std::vector<std::string> held = HeldUp(job, first);
    std::vector<uint64_t> all(job.late_ranks().begin(), job.late_ranks().end());
    absl::StrAppend(&out, job.job(), ": ", all.size() == 1 ? "rank " : "ranks ",
                    Fold(all), all.size() == 1 ? "" : ", the first being",
                    all.size() == 1 ? "" : absl::StrCat(" rank ", first),
                    Where(job, first), all.size() == 1 ? " keeps" : ", keep",
                    " others waiting");
    if (!held.empty()) {
      absl::StrAppend(&out, " for ", Printable(held[0]));
      if (held.size() > 1) {
        absl::StrAppend(&out, " and ", held.size() - 1, " more");
      }
    }
  } else if (job.pending_operations() > 0 && job.pending_size() > 0 &&
             job.pending(0).missing() > 0) {
    const proto::PendingOperation& op = job.pending(0);
    const uint32_t more = op.missing() - op.missing_nodes_size();
    absl::StrAppend(&out, job.job(), ": ", Printable(OperationText(op)),
                    " waits for node ",
                    absl::StrJoin(op.missing_nodes(), ", "));
    if (more > 0) absl::StrAppend(&out, " and ", more, " more");
  }
  return out;
}

std::string Summary(const std::string& address,
                    const proto::StatusReply& reply) {
  const size_t nodes = Nodes(reply).size();
  size_t ranks = 0, late = 0;
  for (const proto::JobStatus& job : reply.jobs()) {
    ranks += job.state() == "running" ? job.size() : 0;
    late += job.late_ranks_size();
  }
  std::string out = absl::StrCat(
      "coordinator ", address, "  version ", reply.version(), "  protocol ",
      reply.protocol_version(), "  up ", Duration(reply.uptime_seconds()), "\n",
      Count(reply.jobs_size(), "job"), ", ", Count(nodes, "node"), ", ",
      Count(ranks, "running rank"));
  if (late > 0) absl::StrAppend(&out, ", ", late, " late");
  return out + "\n";
}

std::string StatusView(const std::string& address,
                       const proto::StatusReply& reply,
                       const std::vector<OtherCoordinator>& others,
                       size_t width) {
  const std::map<std::string, NodeSum> nodes = Nodes(reply);
  std::string out = Summary(address, reply);
  if (const std::string role = RoleText(reply, others); !role.empty()) {
    out += Wrap(role, width);
  }
  std::string troubles;
  for (const OtherCoordinator& other : others) {
    if (other.note != kStandby) troubles += Wrap(other.note, width);
  }
  Table table({{"JOB"},
               {"STATE"},
               {"FOR", Align::kRight},
               {"EPOCH", Align::kRight},
               {"RANKS", Align::kRight},
               {"NODES", Align::kRight},
               {"TIER"},
               {"LATE", Align::kRight},
               {"PENDING", Align::kRight}});
  for (const proto::JobStatus& job : reply.jobs()) {
    table.Add({job.job(), job.state(), Duration(job.state_seconds()),
               NumberOrDash(job.epoch()), SizeText(job),
               absl::StrCat(job.nodes_size()),
               job.tier().empty() ? "-" : job.tier(),
               NumberOrDash(job.late_ranks_size()),
               NumberOrDash(job.pending_operations())});
    for (const std::string& text : {Trouble(job), WhyNegotiated(job)}) {
      if (!text.empty()) troubles += Wrap(text, width);
    }
  }
  if (!table.empty()) out += "\n" + table.Text(width);
  if (!nodes.empty()) out += NodesTable(nodes, width);
  if (!troubles.empty()) out += "\n" + troubles;
  if (reply.cut())
    out +=
        "\nThe reply is incomplete because it is too large; ask for one job.\n";
  return out;
}

std::string JobsView(const proto::StatusReply& reply, size_t width) {
  Table table({{"JOB"},
               {"STATE"},
               {"FOR", Align::kRight},
               {"EPOCH", Align::kRight},
               {"RANKS", Align::kRight},
               {"OPERATIONS", Align::kRight},
               {"WHERE"}});
  for (const proto::JobStatus& job : reply.jobs()) {
    std::vector<std::string> where;
    for (const proto::NodeStatus* node : ByRank(job)) {
      where.push_back(absl::StrCat(node->node(),
                                   node->ranks().empty() ? "" : ":",
                                   Fold(RanksOf(*node))));
    }
    // The coordinator does not see the operations of a job on one node.
    const std::string operations =
        job.nodes_size() > 1 ? absl::StrCat(job.operations()) : "-";
    table.Add({job.job(), job.state(), Duration(job.state_seconds()),
               NumberOrDash(job.epoch()), SizeText(job), operations,
               absl::StrJoin(where, " ")});
  }
  return table.empty() ? "no jobs\n" : table.Text(width);
}

std::string DashboardLink(const std::string& coordinator,
                          const proto::DashboardReply& reply) {
  const size_t colon = reply.address().rfind(':');
  std::string host = reply.address().substr(0, colon);
  // It listens on all addresses, of which the caller knows one.
  if (host == "0.0.0.0" || host == "[::]") {
    host = coordinator.substr(0, coordinator.rfind(':'));
  }
  return absl::StrCat(reply.tls() ? "https" : "http", "://", host,
                      reply.address().substr(colon),
                      "/login?token=", reply.token());
}

std::string TimelineLine(const std::string& job,
                         const proto::TimelineStatus& timeline) {
  const char* const verb = timeline.state() == "on" ? "writes" : "completes";
  return absl::StrCat("job ", job, ": rank ", timeline.rank(), " (host ",
                      timeline.host(), ") ", verb, " the timeline ",
                      Printable(timeline.path()), " in its directory");
}

std::string EventLine(const proto::Event& event) {
  const auto seconds = static_cast<time_t>(std::floor(event.unix_seconds()));
  const int ms = static_cast<int>(
      (event.unix_seconds() - static_cast<double>(seconds)) * 1000);
  tm local{};
  localtime_r(&seconds, &local);
  char stamp[32];
  strftime(stamp, sizeof(stamp), "%m-%d %H:%M:%S", &local);
  // The event's text without the fields that the line shows already.
  std::string rest = absl::StrCat(" ", event.text());
  rest =
      absl::StrReplaceAll(rest, {{absl::StrCat(" event=", event.kind()), ""}});
  if (!event.job().empty()) {
    const std::string job = absl::StrCat(" job=", event.job());
    if (const size_t at = rest.find(job + " "); at != std::string::npos) {
      rest.erase(at, job.size());
    } else if (absl::EndsWith(rest, job)) {
      rest.erase(rest.size() - job.size());
    }
  }
  return absl::StrFormat("%s.%03d %-7s %s %s%s", stamp, ms, event.level(),
                         event.job().empty() ? "-" : event.job(), event.kind(),
                         Printable(rest));
}

}  // namespace maypole::ctl
