// ExecutorFamilies: the metrics of executors, from their statistics pages.
//
//   ExecutorFamilies families;
//   families.Add({job, uid, pid}, page);      // for each executor
//   std::vector<prometheus::MetricFamily> all = families.Take();
//
// Thread contract: one thread.
#ifndef MAYPOLE_WORKER_SESSION_EXECUTOR_FAMILIES_H_
#define MAYPOLE_WORKER_SESSION_EXECUTOR_FAMILIES_H_

#include <prometheus/metric_family.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "worker/session/stats_page.h"

namespace maypole::worker {

struct ExecutorFacts {
  std::string job;
  uid_t uid = 0;
  pid_t pid = 0;
};

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

prometheus::MetricFamily MakeFamily(const char* name, const char* help,
                                    prometheus::MetricType type);
void AddSample(prometheus::MetricFamily* family, MetricLabels labels,
               double value);

class ExecutorFamilies {
 public:
  ExecutorFamilies();

  void Add(const ExecutorFacts& facts, const StatsPage& page);
  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  void AddOperations(const MetricLabels& job, const StatsPage& page);
  void AddWaits(const MetricLabels& job, const StatsPage& page);
  void AddProcess(const MetricLabels& job, pid_t pid);

  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_SESSION_EXECUTOR_FAMILIES_H_
