// The view of a job's ranks.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"
#include "client/ctl/views.h"

namespace maypole::ctl {
namespace {

// How many ranks of an elastic job wait for a rank number.
size_t Unnumbered(const proto::JobStatus& job) {
  size_t n = 0;
  for (const proto::NodeStatus& node : job.nodes()) {
    for (const proto::RankStatus& r : node.rank_status()) n += r.unnumbered();
  }
  return n;
}

struct RankLine {
  std::vector<uint64_t> ranks;
  size_t unnumbered = 0;
  std::vector<std::string> nodes;
  std::string state;
  std::vector<uint64_t> pids;
  std::set<std::string> gpus;
  uint64_t gpu_bytes = 0;
  std::string late_for;

  uint64_t First() const { return ranks.empty() ? UINT64_MAX : ranks.front(); }
};

bool Alike(const RankLine& a, const RankLine& b) {
  return a.state == b.state && a.late_for == b.late_for &&
         (a.unnumbered > 0) == (b.unnumbered > 0);
}

void Merge(RankLine&& from, RankLine* into) {
  into->ranks.insert(into->ranks.end(), from.ranks.begin(), from.ranks.end());
  std::sort(into->ranks.begin(), into->ranks.end());
  into->unnumbered += from.unnumbered;
  into->pids.insert(into->pids.end(), from.pids.begin(), from.pids.end());
  into->gpus.merge(from.gpus);
  into->gpu_bytes += from.gpu_bytes;
  if (into->nodes.back() != from.nodes.front()) {
    into->nodes.push_back(from.nodes.front());
  }
}

RankLine LineOf(const proto::NodeStatus& node, const proto::RankStatus& r) {
  RankLine line;
  if (r.unnumbered()) {
    line.unnumbered = 1;
  } else {
    line.ranks.push_back(r.rank());
  }
  line.nodes.push_back(node.node());
  line.state = node.connected() ? r.state() : r.state() + "?";
  if (r.pid() > 0) line.pids.push_back(static_cast<uint64_t>(r.pid()));
  for (const proto::GpuUse& gpu : r.gpus()) {
    line.gpus.insert(gpu.uuid());
    line.gpu_bytes += gpu.bytes();
  }
  constexpr int kShown = 2;
  line.late_for = absl::StrJoin(
      r.late_for().begin(),
      r.late_for().begin() + std::min(kShown, r.late_for_size()), ", ");
  if (r.late_for_size() > kShown) {
    absl::StrAppend(&line.late_for, " and ", r.late_for_size() - kShown,
                    " more");
  }
  return line;
}

std::vector<RankLine> RankLines(const proto::JobStatus& job, bool each) {
  std::vector<RankLine> lines;
  for (const proto::NodeStatus& node : job.nodes()) {
    const size_t first = lines.size();
    for (const proto::RankStatus& r : node.rank_status()) {
      RankLine line = LineOf(node, r);
      const auto same = std::find_if(
          lines.begin() + first, lines.end(),
          [&](const RankLine& other) { return Alike(line, other); });
      if (each || same == lines.end()) {
        lines.push_back(std::move(line));
      } else {
        Merge(std::move(line), &*same);
      }
    }
  }
  const auto by_rank = [](const RankLine& a, const RankLine& b) {
    return a.First() < b.First();
  };
  std::stable_sort(lines.begin(), lines.end(), by_rank);
  if (each || lines.size() <= kMaxRankLines) return lines;
  std::vector<RankLine> merged;
  for (RankLine& line : lines) {
    const auto same =
        std::find_if(merged.begin(), merged.end(),
                     [&](const RankLine& other) { return Alike(line, other); });
    if (same == merged.end()) {
      merged.push_back(std::move(line));
    } else {
      Merge(std::move(line), &*same);
    }
  }
  return merged;
}

std::string RankCell(const RankLine& line) {
  if (line.unnumbered == 0) return Fold(line.ranks);
  return line.unnumbered == 1 ? "new" : absl::StrCat(line.unnumbered, " new");
}

// "GPU-4f1b83de 64 MiB": the first part of the UUID is enough to tell the GPUs
// of a cluster apart; --json has all of it.
std::string GpuCell(const RankLine& line) {
  if (line.gpus.empty()) return "-";
  constexpr size_t kShown = sizeof("GPU-4f1b83de") - 1;
  return absl::StrCat(line.gpus.size() == 1
                          ? line.gpus.begin()->substr(0, kShown)
                          : Count(line.gpus.size(), "GPU"),
                      " ", line.gpu_bytes >> 20, " MiB");
}

std::vector<Table::Column> RankColumns(bool gpus) {
  std::vector<Table::Column> out = {{"RANK"}, {"NODE"}, {"STATE"}, {"PID"}};
  if (gpus) out.push_back({"GPU"});
  out.push_back({"LATE FOR"});
  return out;
}

std::string Heading(const proto::JobStatus& job) {
  std::string out = absl::StrCat(
      "job ", job.job(), "  epoch ", job.epoch(), "  ", job.state(), " for ",
      Duration(job.state_seconds()), "  ", Count(job.size(), "rank"), " on ",
      Count(job.nodes_size(), "node"));
  if (job.elastic()) out += "  elastic";
  return out + "\n";
}

}  // namespace

std::string RanksView(const proto::StatusReply& reply, bool each,
                      size_t width) {
  std::string out;
  for (const proto::JobStatus& job : reply.jobs()) {
    absl::StrAppend(&out, out.empty() ? "" : "\n", Heading(job));
    const std::vector<RankLine> lines = RankLines(job, each);
    const bool gpus =
        std::any_of(lines.begin(), lines.end(),
                    [](const RankLine& line) { return !line.gpus.empty(); });
    Table table(RankColumns(gpus));
    for (const RankLine& line : lines) {
      std::vector<std::string> cells = {
          RankCell(line),
          line.nodes.size() == 1 ? line.nodes.front()
                                 : Count(line.nodes.size(), "node"),
          line.state, line.nodes.size() == 1 ? Fold(line.pids) : "-"};
      if (gpus) cells.push_back(GpuCell(line));
      cells.push_back(line.late_for.empty() ? "-" : line.late_for);
      table.Add(std::move(cells));
    }
    if (!table.empty()) out += table.Text(width);
    const size_t waiting = Unnumbered(job);
    if (waiting > 0) {
      absl::StrAppend(&out, Count(waiting, "new rank"),
                      " will be numbered when the next epoch starts\n");
    }
  }
  if (reply.cut())
    out +=
        "\nThe reply is incomplete because it is too large; ask for one job.\n";
  return out.empty() ? "no jobs\n" : out;
}

}  // namespace maypole::ctl
