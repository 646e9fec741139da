// What the agent's endpoint shows of executors.
#include "worker/session/metrics.h"

#include <gtest/gtest.h>
#include <prometheus/metric_family.h>

#include <memory>
#include <string>

namespace maypole::worker {
namespace {

double Counter(const WorkerMetrics& metrics, const std::string& name) {
  for (const prometheus::MetricFamily& family : metrics.Collect()) {
    if (family.name == name) return family.metric.at(0).counter.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return -1;
}

TEST(WorkerMetrics, RefusalsOfExecutorsCountAlsoAfterTheirEnd) {
  constexpr char kName[] = "maypole_clients_refused_total";
  absl::StatusOr<SharedStats> stats = SharedStats::Create();
  ASSERT_TRUE(stats.ok()) << stats.status();
  auto page = std::make_shared<SharedStats>(*std::move(stats));
  WorkerMetrics metrics;
  metrics.CountRefusal();
  EXPECT_EQ(Counter(metrics, kName), 1);
  metrics.Add(7, "job", 1000, page);
  (*page)->Count(ErrorKind::kRefused);
  (*page)->Count(ErrorKind::kRefused);
  (*page)->Count(ErrorKind::kNetwork);
  EXPECT_EQ(Counter(metrics, kName), 3);
  metrics.Remove(7, false);
  EXPECT_EQ(Counter(metrics, kName), 3);
  metrics.Remove(7, false);  // it is not there any more
  EXPECT_EQ(Counter(metrics, kName), 3);
}

}  // namespace
}  // namespace maypole::worker
