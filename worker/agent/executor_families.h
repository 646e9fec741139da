// AddExecutor: converts an executor's statistics page to Prometheus families.
//
//   Families all;
//   AddExecutor({job, uid, pid}, page, &all);      // for each executor
//   return all.Take();
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_AGENT_EXECUTOR_FAMILIES_H_
#define MAYPOLE_WORKER_AGENT_EXECUTOR_FAMILIES_H_

#include <sys/types.h>

#include <string>

#include "common/metrics/families.h"
#include "worker/executor/board/stats_page.h"

namespace maypole::worker {

struct ExecutorFacts {
  std::string job;
  uid_t uid = 0;
  pid_t pid = 0;
};

void AddExecutor(const ExecutorFacts& facts, const StatsPage& page,
                 Families* all);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_AGENT_EXECUTOR_FAMILIES_H_
