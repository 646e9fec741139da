#include "common/metrics/families.h"

#include <limits>

namespace maypole {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

void Families::Counter(const char* name, const char* help, Labels labels,
                       double value) {
  Sample(name, help, MetricType::Counter, std::move(labels)).counter.value =
      value;
}

void Families::Gauge(const char* name, const char* help, Labels labels,
                     double value) {
  Sample(name, help, MetricType::Gauge, std::move(labels)).gauge.value = value;
}

void Families::Histogram(const char* name, const char* help, Labels labels,
                         std::span<const double> bounds,
                         std::span<const uint64_t> counts, double sum) {
  ClientMetric::Histogram& histogram =
      Sample(name, help, MetricType::Histogram, std::move(labels)).histogram;
  uint64_t count = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    count += counts[i];
    histogram.bucket.push_back(
        {count, i < bounds.size() ? bounds[i]
                                  : std::numeric_limits<double>::infinity()});
  }
  histogram.sample_count = count;
  histogram.sample_sum = sum;
}

ClientMetric& Families::Sample(const char* name, const char* help,
                               MetricType type, Labels labels) {
  const auto [it, is_new] = by_name_.emplace(name, all_.size());
  if (is_new) {
    MetricFamily& family = all_.emplace_back();
    family.name = name;
    family.help = help;
    family.type = type;
  }
  ClientMetric& sample = all_[it->second].metric.emplace_back();
  sample.label = std::move(labels);
  return sample;
}

}  // namespace maypole
