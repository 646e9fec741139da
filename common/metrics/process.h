// What the system says about a process: memory, CPU time, descriptors.
//
// Purpose: the process_* metrics that every Prometheus client has, of this
// process; and the same facts about an executor, which has no endpoint.
//
//   MetricsServer::Start(address, {std::make_shared<ProcessMetrics>(), ...});
//
// Thread contract: any thread. /proc is read at each call; what cannot be read
// is left out.
#ifndef MAYPOLE_COMMON_METRICS_PROCESS_H_
#define MAYPOLE_COMMON_METRICS_PROCESS_H_

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace maypole {

struct ProcessUse {
  double cpu_seconds = 0;  // user and system
  uint64_t resident_bytes = 0;
  uint64_t virtual_bytes = 0;
  double started = 0;  // seconds after the machine's start
};

// Of the text of /proc/<pid>/stat; none: it is no such text.
std::optional<ProcessUse> ParseProcessStat(std::string_view text,
                                           uint64_t ticks_per_second,
                                           uint64_t page_bytes);

// None: there is no such process, or it is not ours to see.
std::optional<ProcessUse> ReadProcessUse(pid_t pid);

class ProcessMetrics : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_METRICS_PROCESS_H_
