#include "worker/session/metrics.h"

#include <limits>
#include <utility>

#include "worker/core/version.h"

namespace maypole::worker {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

uint64_t Read(const StatsPage::Counter& c) {
  return c.load(std::memory_order_relaxed);
}

uint64_t RefusedBy(const StatsPage& page) {
  return Read(page.errors[static_cast<int>(ErrorKind::kRefused)]);
}

MetricFamily Family(const char* name, const char* help, MetricType type) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

void AddSample(MetricFamily* family, Labels labels, uint64_t value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (family->type == MetricType::Counter) {
    metric.counter.value = static_cast<double>(value);
  } else {
    metric.gauge.value = static_cast<double>(value);
  }
  family->metric.push_back(std::move(metric));
}

Labels With(Labels labels, const char* name, std::string_view value) {
  labels.push_back({name, std::string(value)});
  return labels;
}

ClientMetric RunSeconds(const StatsPage& page, Labels labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  uint64_t count = 0;
  for (size_t i = 0; i < kRunSecondsBounds.size(); ++i) {
    count += Read(page.run_seconds[i]);
    metric.histogram.bucket.push_back({count, kRunSecondsBounds[i]});
  }
  count += Read(page.run_seconds[kRunSecondsBounds.size()]);
  metric.histogram.bucket.push_back(
      {count, std::numeric_limits<double>::infinity()});
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum =
      static_cast<double>(Read(page.run_nanoseconds)) * 1e-9;
  return metric;
}

}  // namespace

void WorkerMetrics::Add(uint64_t executor, const std::string& job, uid_t uid,
                        std::shared_ptr<SharedStats> stats) {
  std::lock_guard lock(mutex_);
  executors_[executor] = {job, uid, std::move(stats)};
  ++started_;
}

void WorkerMetrics::Remove(uint64_t executor, bool crashed) {
  std::lock_guard lock(mutex_);
  const auto it = executors_.find(executor);
  if (it != executors_.end()) {
    refusals_ += RefusedBy(**it->second.stats);
    executors_.erase(it);
  }
  if (crashed) ++crashed_;
}

std::vector<MetricFamily> WorkerMetrics::Collect() const {
  MetricFamily build =
      Family("maypole_build_info", "Version of the agent.", MetricType::Gauge);
  AddSample(&build, {{"version", kVersion}, {"program", "maypole-worker"}}, 1);
  MetricFamily live =
      Family("maypole_executors", "Executors that run now.", MetricType::Gauge);
  MetricFamily started = Family("maypole_executors_started_total",
                                "Executors started.", MetricType::Counter);
  MetricFamily crashed =
      Family("maypole_executor_crashes_total",
             "Executors that ended by a signal or with an error.",
             MetricType::Counter);
  MetricFamily refusals = Family(
      "maypole_clients_refused_total",
      "Ranks refused, by the agent or by an executor.", MetricType::Counter);
  MetricFamily operations = Family(
      "maypole_executor_operations_total",
      "Collectives of the job on this node (within one node: sampled from the "
      "board).",
      MetricType::Counter);
  MetricFamily bytes =
      Family("maypole_executor_operation_bytes_total",
             "Bytes of those operations' tensors.", MetricType::Counter);
  MetricFamily network =
      Family("maypole_network_bytes_total",
             "Payload exchanged with other nodes.", MetricType::Counter);
  MetricFamily runs = Family("maypole_executor_runs_total",
                             "Runs issued (fused operations are one run).",
                             MetricType::Counter);
  MetricFamily presence = Family(
      "maypole_presence_operations_total",
      "Operations reported present to the coordinator.", MetricType::Counter);
  MetricFamily errors =
      Family("maypole_errors_total", "Errors by kind.", MetricType::Counter);
  MetricFamily reconnects = Family(
      "maypole_reconnects_total",
      "Streams to the coordinator that were resumed.", MetricType::Counter);
  MetricFamily epochs =
      Family("maypole_epochs_total", "Epochs begun.", MetricType::Counter);
  MetricFamily ranks =
      Family("maypole_local_ranks", "Ranks of the running epoch on this node.",
             MetricType::Gauge);
  MetricFamily board =
      Family("maypole_board_bytes", "Size of the job's shared memory.",
             MetricType::Gauge);
  MetricFamily seconds =
      Family("maypole_run_seconds",
             "From the coordinator's Execute until the last chunk has been "
             "exchanged.",
             MetricType::Histogram);

  std::lock_guard lock(mutex_);
  AddSample(&live, {}, executors_.size());
  AddSample(&started, {}, started_);
  AddSample(&crashed, {}, crashed_);
  uint64_t refused = refusals_;
  for (const auto& [id, e] : executors_) refused += RefusedBy(**e.stats);
  AddSample(&refusals, {}, refused);
  for (const auto& [id, e] : executors_) {
    const StatsPage& page = **e.stats;
    const Labels job = {{"job", e.job}, {"uid", std::to_string(e.uid)}};
    for (int k = 0; k < kKinds; ++k) {
      const uint64_t n = Read(page.operations[k]);
      if (n == 0) continue;
      const Labels kind = With(job, "kind", Name(static_cast<Kind>(k)));
      AddSample(&operations, kind, n);
      AddSample(&bytes, kind, Read(page.operation_bytes[k]));
    }
    for (int k = 0; k < kErrorKinds; ++k) {
      AddSample(&errors, With(job, "kind", Name(static_cast<ErrorKind>(k))),
                Read(page.errors[k]));
    }
    AddSample(&network, With(job, "direction", "sent"),
              Read(page.network_sent));
    AddSample(&network, With(job, "direction", "received"),
              Read(page.network_received));
    AddSample(&runs, job, Read(page.runs));
    AddSample(&presence, job, Read(page.presence));
    AddSample(&reconnects, job, Read(page.reconnects));
    AddSample(&epochs, job, Read(page.epochs));
    AddSample(&ranks, job, Read(page.local_ranks));
    AddSample(&board, job, Read(page.board_bytes));
    seconds.metric.push_back(RunSeconds(page, job));
  }
  return {build,  live,    started, crashed,  refusals, operations,
          bytes,  network, runs,    presence, errors,   reconnects,
          epochs, ranks,   board,   seconds};
}

}  // namespace maypole::worker
