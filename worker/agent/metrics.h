// WorkerMetrics: the metrics of the agent's Prometheus endpoint.
//
// Purpose: each scrape reads the statistics pages of the live executors and
// their memory and CPU time from /proc. The labels job and uid have one value
// per live executor (at most kMaxExecutors).
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_AGENT_METRICS_H_
#define MAYPOLE_WORKER_AGENT_METRICS_H_

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/agent/executor_families.h"
#include "worker/executor/board/stats_page.h"

namespace maypole::worker {

class WorkerMetrics : public prometheus::Collectable {
 public:
  void Add(uint64_t executor, ExecutorFacts facts,
           std::shared_ptr<SharedStats> stats);
  void Remove(uint64_t executor, bool crashed);
  void CountRefusal() { ++refusals_; }

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct Executor {
    ExecutorFacts facts;
    std::shared_ptr<SharedStats> stats;
  };
  mutable std::mutex mutex_;
  std::map<uint64_t, Executor> executors_;
  std::atomic<uint64_t> started_{0};
  std::atomic<uint64_t> crashed_{0};
  std::atomic<uint64_t> refusals_{0};
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_AGENT_METRICS_H_
