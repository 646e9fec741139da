#include "worker/session/metrics.h"

#include <map>
#include <string>
#include <utility>

#include "common/metrics/process.h"
#include "worker/core/version.h"

namespace maypole::worker {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

uint64_t RefusedBy(const StatsPage& page) {
  return page.errors[static_cast<int>(ErrorKind::kRefused)].load();
}

MetricFamily One(const char* name, const char* help, MetricType type,
                 MetricLabels labels, uint64_t value) {
  MetricFamily family = MakeFamily(name, help, type);
  AddSample(&family, std::move(labels), static_cast<double>(value));
  return family;
}

}  // namespace

void WorkerMetrics::Add(uint64_t executor, ExecutorFacts facts,
                        std::shared_ptr<SharedStats> stats) {
  std::lock_guard lock(mutex_);
  executors_[executor] = {std::move(facts), std::move(stats)};
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
  std::lock_guard lock(mutex_);
  uint64_t refused = refusals_;
  // A new executor of a job may start while the last one ends: one of them is
  // shown, or a series would be there twice.
  std::map<std::pair<std::string, uid_t>, const Executor*> newest;
  for (const auto& [id, e] : executors_) {
    refused += RefusedBy(**e.stats);
    newest[{e.facts.job, e.facts.uid}] = &e;
  }
  ExecutorFamilies families;
  for (const auto& [job, e] : newest) families.Add(e->facts, **e->stats);
  std::vector<MetricFamily> all = families.Take();
  for (MetricFamily& family : ProcessMetrics().Collect()) {
    all.push_back(std::move(family));
  }
  all.push_back(One("maypole_build_info", "The agent's version; always 1.",
                    MetricType::Gauge,
                    {{"version", kVersion}, {"program", "maypole-worker"}}, 1));
  all.push_back(One("maypole_executors", "Executors that run now.",
                    MetricType::Gauge, {}, executors_.size()));
  all.push_back(One("maypole_executors_started_total", "Executors started.",
                    MetricType::Counter, {}, started_));
  all.push_back(One("maypole_executor_crashes_total",
                    "Executors that ended by a signal or with an error.",
                    MetricType::Counter, {}, crashed_));
  all.push_back(One("maypole_clients_refused_total",
                    "Ranks refused, by the agent or by an executor.",
                    MetricType::Counter, {}, refused));
  return all;
}

}  // namespace maypole::worker
