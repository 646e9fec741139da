// The view of what jobs do now.
#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"
#include "client/ctl/views.h"

namespace maypole::ctl {
namespace {

using Align = Table::Align;

// Ranks that are less late than this are not worth a line.
constexpr double kLateFrom = 0.05;
constexpr int kBarColumns = 20;

struct LateRank {
  const proto::JobStatus* job = nullptr;
  const proto::NodeStatus* node = nullptr;
  const proto::RankStatus* rank = nullptr;
};

std::string Percent(double part) {
  return absl::StrCat(std::lround(100 * part), "%");
}

// The ranks that are latest come first.
std::vector<LateRank> LateRanks(const proto::JobStatus& job) {
  std::vector<LateRank> late;
  for (const proto::NodeStatus& node : job.nodes()) {
    for (const proto::RankStatus& rank : node.rank_status()) {
      if (rank.has_late() && rank.late() >= kLateFrom) {
        late.push_back({&job, &node, &rank});
      }
    }
  }
  std::stable_sort(late.begin(), late.end(),
                   [](const LateRank& a, const LateRank& b) {
                     return a.rank->late() > b.rank->late();
                   });
  return late;
}

std::string LatestText(const std::vector<LateRank>& late) {
  if (late.empty()) return "-";
  const proto::RankStatus& rank = *late.front().rank;
  return absl::StrCat("rank ", rank.rank(), " ", Percent(rank.late()));
}

// The tier of a job, or the state of one that does not run.
std::string TierText(const proto::JobStatus& job) {
  if (job.state() != "running") return job.state();
  return job.tier().empty() ? "local" : job.tier();
}

std::string JobsTable(const proto::StatusReply& reply, size_t width) {
  Table table({{"JOB"},
               {"RANKS", Align::kRight},
               {"TIER"},
               {"STEPS/S", Align::kRight},
               {"B/S", Align::kRight},
               {"SENT", Align::kRight},
               {"WAIT", Align::kRight},
               {"LATEST"}});
  for (const proto::JobStatus& job : reply.jobs()) {
    const proto::JobStats& s = job.stats();
    const auto cell = [&job](const std::string& text) {
      return job.has_stats() ? text : "-";
    };
    table.Add({job.job(), absl::StrCat(job.size()), TierText(job),
               cell(Amount(s.steps_per_second())),
               cell(Amount(s.bytes_per_second())),
               cell(Amount(s.sent_per_second())), cell(Percent(s.waiting())),
               LatestText(LateRanks(job))});
  }
  return table.empty() ? "" : "\n" + table.Text(width);
}

std::string RanksTable(const std::vector<LateRank>& late, size_t width) {
  Table table({{"JOB"},
               {"RANK", Align::kRight},
               {"NODE"},
               {"PID", Align::kRight},
               {"WAIT", Align::kRight},
               {"LATE", Align::kRight},
               {""}});
  for (const LateRank& l : late) {
    const auto bar = static_cast<size_t>(
        std::lround(kBarColumns * std::clamp(l.rank->late(), 0.0, 1.0)));
    table.Add({l.job->job(), absl::StrCat(l.rank->rank()), l.node->node(),
               absl::StrCat(l.rank->pid()), Percent(l.rank->waiting()),
               Percent(l.rank->late()), std::string(bar, '#')});
  }
  return table.empty() ? "" : "\n" + table.Text(width);
}

// The first lines; the last one says if there are more.
std::string Head(const std::string& text, size_t lines) {
  const std::vector<std::string> all = absl::StrSplit(text, '\n');
  if (lines == 0 || all.size() - 1 <= lines) return text;
  return absl::StrCat(
      absl::StrJoin(all.begin(), all.begin() + static_cast<long>(lines) - 1,
                    "\n"),
      "\n... ", all.size() - lines, " more lines\n");
}

}  // namespace

std::string TopView(const std::string& address, const proto::StatusReply& reply,
                    size_t width, size_t height) {
  std::string out = Summary(address, reply) + JobsTable(reply, width);
  std::string troubles;
  std::vector<LateRank> late;
  for (const proto::JobStatus& job : reply.jobs()) {
    if (const std::string text = Trouble(job); !text.empty()) {
      troubles += Wrap(text, width);
    }
    for (const LateRank& l : LateRanks(job)) late.push_back(l);
  }
  if (!troubles.empty()) absl::StrAppend(&out, "\n", troubles);
  return Head(out + RanksTable(late, width), height);
}

}  // namespace maypole::ctl
