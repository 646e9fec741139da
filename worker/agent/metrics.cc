#include "worker/agent/metrics.h"

#include <map>
#include <string>
#include <utility>

#include "common/metrics/families.h"
#include "common/metrics/process.h"
#include "common/version.h"

namespace maypole::worker {
namespace {

uint64_t RefusedBy(const StatsPage& page) {
  return page.errors[static_cast<int>(ErrorKind::kRefused)].load();
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

std::vector<prometheus::MetricFamily> WorkerMetrics::Collect() const {
  std::lock_guard lock(mutex_);
  uint64_t refused = refusals_;
  // A new executor of a job may start while the previous one ends. Only one of
  // the two is shown, because a series must not occur twice.
  std::map<std::pair<std::string, uid_t>, const Executor*> newest;
  for (const auto& [id, e] : executors_) {
    refused += RefusedBy(**e.stats);
    newest[{e.facts.job, e.facts.uid}] = &e;
  }
  Families all;
  for (const auto& [job, e] : newest) AddExecutor(e->facts, **e->stats, &all);
  all.Gauge("maypole_build_info", "The agent's version; always 1.",
            {{"version", kVersion}, {"program", "maypole-worker"}}, 1);
  all.Gauge("maypole_executors", "Executors that are running now.", {},
            static_cast<double>(executors_.size()));
  all.Counter("maypole_executors_started_total", "Executors started.", {},
              static_cast<double>(started_));
  all.Counter("maypole_executor_crashes_total",
              "Executors that ended by a signal or with an error.", {},
              static_cast<double>(crashed_));
  all.Counter("maypole_clients_refused_total",
              "Ranks refused, by the agent or by an executor.", {},
              static_cast<double>(refused));
  return all.Take();
}

}  // namespace maypole::worker
