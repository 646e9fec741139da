#include "worker/session/executor_families.h"

#include <limits>
#include <set>
#include <utility>

#include "common/metrics/process.h"

namespace maypole::worker {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Places in families_, in the order of the endpoint.
enum Which : size_t {
  kOperations,
  kOperationBytes,
  kRuns,
  kFused,
  kPresence,
  kPresenceSeconds,
  kRunSeconds,
  kNetworkBytes,
  kWaits,
  kWaitSeconds,
  kRankLate,
  kErrors,
  kReconnects,
  kEpochs,
  kLocalRanks,
  kBoardBytes,
  kArenaBytes,
  kMemory,
  kCpu,
  kFamilies,
};

struct Described {
  const char* name;
  const char* help;
  MetricType type;
};

constexpr Described kDescribed[kFamilies] = {
    {"maypole_executor_operations_total",
     "Collectives of the job on this node, but for those that failed.",
     MetricType::Counter},
    {"maypole_executor_operation_bytes_total",
     "Bytes of the results of those operations.", MetricType::Counter},
    {"maypole_executor_runs_total",
     "Negotiated runs issued (fused operations are one run).",
     MetricType::Counter},
    {"maypole_fused_operations", "Operations of a negotiated run.",
     MetricType::Histogram},
    {"maypole_presence_operations_total",
     "Operations reported present to the coordinator.", MetricType::Counter},
    {"maypole_presence_seconds",
     "From an operation's presence on this node until its run is issued here.",
     MetricType::Histogram},
    {"maypole_run_seconds",
     "From the coordinator's Execute until the last chunk has been exchanged.",
     MetricType::Histogram},
    {"maypole_network_bytes_total", "Payload exchanged with other nodes.",
     MetricType::Counter},
    {"maypole_waits_total",
     "Waits of ranks for operations that came to sleep, by what for first.",
     MetricType::Counter},
    {"maypole_wait_seconds_total",
     "Time that ranks slept in waits, by what they slept for.",
     MetricType::Counter},
    {"maypole_rank_late_seconds_total",
     "Time that other ranks of the node slept for this one, summed over them.",
     MetricType::Counter},
    {"maypole_errors_total", "Errors by kind.", MetricType::Counter},
    {"maypole_reconnects_total",
     "Streams to the coordinator that were resumed.", MetricType::Counter},
    {"maypole_epochs_total", "Epochs begun.", MetricType::Counter},
    {"maypole_local_ranks", "Ranks of the running epoch on this node.",
     MetricType::Gauge},
    {"maypole_board_bytes",
     "Size of the job's shared memory, without its arenas.", MetricType::Gauge},
    {"maypole_arena_bytes", "Memory that the job's arena tensors take.",
     MetricType::Gauge},
    {"maypole_executor_memory_bytes", "Resident memory of the job's executor.",
     MetricType::Gauge},
    {"maypole_executor_cpu_seconds_total",
     "User and system CPU time of the job's executor.", MetricType::Counter},
};

uint64_t Read(const StatsPage::Counter& c) {
  return c.load(std::memory_order_relaxed);
}

double Number(const StatsPage::Counter& c) {
  return static_cast<double>(Read(c));
}

double Seconds(const StatsPage::Counter& nanoseconds) {
  return Number(nanoseconds) * 1e-9;
}

MetricLabels With(MetricLabels labels, const char* name,
                  std::string_view value) {
  labels.push_back({name, std::string(value)});
  return labels;
}

template <typename Histogram>
void AddHistogram(MetricFamily* family, MetricLabels labels,
                  const Histogram& from, double unit) {
  ClientMetric metric;
  metric.label = std::move(labels);
  uint64_t count = 0;
  for (size_t i = 0; i < Histogram::bounds.size(); ++i) {
    count += Read(from.counts[i]);
    metric.histogram.bucket.push_back({count, Histogram::bounds[i]});
  }
  count += Read(from.counts[Histogram::bounds.size()]);
  metric.histogram.bucket.push_back(
      {count, std::numeric_limits<double>::infinity()});
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = Number(from.sum) * unit;
  family->metric.push_back(std::move(metric));
}

}  // namespace

MetricFamily MakeFamily(const char* name, const char* help, MetricType type) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

void AddSample(MetricFamily* family, MetricLabels labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.counter.value = value;
  metric.gauge.value = value;
  family->metric.push_back(std::move(metric));
}

ExecutorFamilies::ExecutorFamilies() {
  for (const Described& d : kDescribed) {
    families_.push_back(MakeFamily(d.name, d.help, d.type));
  }
}

void ExecutorFamilies::Add(const ExecutorFacts& facts, const StatsPage& page) {
  const MetricLabels job = {{"job", facts.job},
                            {"uid", std::to_string(facts.uid)}};
  AddOperations(job, page);
  AddWaits(job, page);
  AddProcess(job, facts.pid);
  for (int k = 0; k < kErrorKinds; ++k) {
    AddSample(&families_[kErrors],
              With(job, "kind", Name(static_cast<ErrorKind>(k))),
              Number(page.errors[k]));
  }
  AddSample(&families_[kReconnects], job, Number(page.reconnects));
  AddSample(&families_[kEpochs], job, Number(page.epochs));
  AddSample(&families_[kLocalRanks], job, Number(page.local_ranks));
  AddSample(&families_[kBoardBytes], job, Number(page.board_bytes));
  AddSample(&families_[kArenaBytes], job, Number(page.arena_bytes));
}

void ExecutorFamilies::AddOperations(const MetricLabels& job,
                                     const StatsPage& page) {
  for (int k = 0; k < kKinds; ++k) {
    if (static_cast<Kind>(k) == Kind::kJoin) continue;  // is no operation
    const MetricLabels kind = With(job, "kind", Name(static_cast<Kind>(k)));
    AddSample(&families_[kOperations], kind, Number(page.operations[k]));
    AddSample(&families_[kOperationBytes], kind,
              Number(page.operation_bytes[k]));
  }
  AddSample(&families_[kRuns], job, Number(page.runs));
  AddHistogram(&families_[kFused], job, page.run_operations, 1);
  AddSample(&families_[kPresence], job, Number(page.presence));
  AddHistogram(&families_[kPresenceSeconds], job, page.presence_ns, 1e-9);
  AddHistogram(&families_[kRunSeconds], job, page.run_ns, 1e-9);
  AddSample(&families_[kNetworkBytes], With(job, "direction", "sent"),
            Number(page.network_sent));
  AddSample(&families_[kNetworkBytes], With(job, "direction", "received"),
            Number(page.network_received));
}

void ExecutorFamilies::AddWaits(const MetricLabels& job,
                                const StatsPage& page) {
  for (int i = 0; i < kWaitFors; ++i) {
    const MetricLabels what = With(job, "for", Name(static_cast<WaitFor>(i)));
    AddSample(&families_[kWaits], what, Number(page.waits[i]));
    AddSample(&families_[kWaitSeconds], what, Seconds(page.wait_ns[i]));
  }
  std::set<uint64_t> shown;  // whatever the page says, none comes twice
  for (int i = 0; i < kMaxLocalRanks; ++i) {
    const uint64_t number = page.rank_number[i].load();
    const double late = static_cast<double>(page.late_ns[i].load()) * 1e-9;
    // A new epoch has other ranks.
    if (number == 0 || page.rank_number[i].load() != number) continue;
    if (number > kMaxRanks || !shown.insert(number).second) continue;
    AddSample(&families_[kRankLate],
              With(job, "rank", std::to_string(number - 1)), late);
  }
}

void ExecutorFamilies::AddProcess(const MetricLabels& job, pid_t pid) {
  const std::optional<ProcessUse> use = ReadProcessUse(pid);
  if (!use) return;
  AddSample(&families_[kMemory], job, static_cast<double>(use->resident_bytes));
  AddSample(&families_[kCpu], job, use->cpu_seconds);
}

}  // namespace maypole::worker
