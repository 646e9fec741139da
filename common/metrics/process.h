// The memory, CPU time and descriptors that a process uses.
//
// Purpose: exports the usual process_* metrics of Prometheus for this process;
// and reads the same values for an executor, which has no endpoint of its own.
//
//   MetricsServer::Start(address, {std::make_shared<ProcessMetrics>(), ...});
//
// Thread contract: any thread. Each call reads /proc; a metric whose value
// cannot be read is left out.
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

// Parses the text of /proc/<pid>/stat; nullopt if it has another form.
std::optional<ProcessUse> ParseProcessStat(std::string_view text,
                                           uint64_t ticks_per_second,
                                           uint64_t page_bytes);

// Nullopt if there is no such process, or we may not read its statistics.
std::optional<ProcessUse> ReadProcessUse(pid_t pid);

class ProcessMetrics : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_METRICS_PROCESS_H_
