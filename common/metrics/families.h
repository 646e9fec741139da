// Families: builds the result of prometheus::Collectable::Collect(), sample by
// sample.
//
//   Families all;
//   all.Counter("maypole_runs_total", "Runs issued.", {{"job", "a"}}, 7);
//   all.Counter("maypole_runs_total", "Runs issued.", {{"job", "b"}}, 2);
//   all.Gauge("maypole_jobs", "Jobs that have executors.", {}, 2);
//   return all.Take();
//
// Samples with the same name become one family. Families are in the order in
// which their names were first used.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_COMMON_METRICS_FAMILIES_H_
#define MAYPOLE_COMMON_METRICS_FAMILIES_H_

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace maypole {

class Families {
 public:
  using Labels = std::vector<prometheus::ClientMetric::Label>;

  void Counter(const char* name, const char* help, Labels labels, double value);
  void Gauge(const char* name, const char* help, Labels labels, double value);
  // `counts`: for each bound, the number of values up to it and above the
  // previous bound; then the number of values above all bounds.
  void Histogram(const char* name, const char* help, Labels labels,
                 std::span<const double> bounds,
                 std::span<const uint64_t> counts, double sum);

  std::vector<prometheus::MetricFamily> Take() { return std::move(all_); }

 private:
  prometheus::ClientMetric& Sample(const char* name, const char* help,
                                   prometheus::MetricType type, Labels labels);

  std::vector<prometheus::MetricFamily> all_;
  std::map<std::string_view, size_t> by_name_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_METRICS_FAMILIES_H_
