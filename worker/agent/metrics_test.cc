// The metrics of executors at the agent's endpoint.
#include "worker/agent/metrics.h"

#include <gtest/gtest.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

namespace maypole::worker {
namespace {

// By name and labels, as the endpoint writes them.
std::map<std::string, double> Scrape(const WorkerMetrics& metrics) {
  std::istringstream lines(
      prometheus::TextSerializer().Serialize(metrics.Collect()));
  std::map<std::string, double> values;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    values[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return values;
}

std::shared_ptr<SharedStats> NewPage() {
  absl::StatusOr<SharedStats> stats = SharedStats::Create();
  EXPECT_TRUE(stats.ok()) << stats.status();
  return std::make_shared<SharedStats>(*std::move(stats));
}

TEST(WorkerMetrics, RefusalsOfExecutorsCountAlsoAfterTheirEnd) {
  constexpr char kName[] = "maypole_clients_refused_total";
  const auto page = NewPage();
  WorkerMetrics metrics;
  metrics.CountRefusal();
  EXPECT_EQ(Scrape(metrics)[kName], 1);
  metrics.Add(7, {"job", 1000, 0}, page);
  (*page)->Count(ErrorKind::kRefused);
  (*page)->Count(ErrorKind::kRefused);
  (*page)->Count(ErrorKind::kNetwork);
  EXPECT_EQ(Scrape(metrics)[kName], 3);
  metrics.Remove(7, false);
  EXPECT_EQ(Scrape(metrics)[kName], 3);
  metrics.Remove(7, false);  // it is not there any more
  EXPECT_EQ(Scrape(metrics)[kName], 3);
}

TEST(WorkerMetrics, EachJobHasItsOwnValues) {
  WorkerMetrics metrics;
  const auto a = NewPage(), b = NewPage();
  metrics.Add(1, {"a", 7, getpid()}, a);
  metrics.Add(2, {"b", 8, 0}, b);
  (*a)->operations[0] = 5;
  (*a)->operation_bytes[0] = 4000;
  (*b)->operations[0] = 1;
  (*a)->Count(ErrorKind::kMismatch);
  (*a)->waits[1] = 3;
  (*a)->wait_ns[1] = 1'500'000'000;
  (*a)->SetRanks(std::vector<int32_t>{4, 9});
  (*a)->late_ns[1] = 250'000'000;
  (*a)->gpu_count = 1000;  // the page is not trusted
  (*a)->gpus[0].set_uuid({0xab, 0xcd});
  (*a)->gpus[0].memory_bytes = 4096;
  (*a)->gpus[0].operations = 2;
  (*a)->gpu_site_operations[2] = 7;
  (*a)->gpus[0].operation_ns = 500'000'000;
  (*a)->gpus[0].wait_ns = 125'000'000;
  (*a)->gpus[0].nccl_ns = 250'000'000;
  auto v = Scrape(metrics);
  const auto at = [&](const std::string& name) {
    EXPECT_TRUE(v.contains(name)) << name;
    return v[name];
  };
  EXPECT_EQ(at("maypole_executor_operations_total{job=\"a\",uid=\"7\","
               "kind=\"allreduce\"}"),
            5);
  EXPECT_EQ(at("maypole_executor_operation_bytes_total{job=\"a\",uid=\"7\","
               "kind=\"allreduce\"}"),
            4000);
  EXPECT_EQ(at("maypole_executor_operations_total{job=\"b\",uid=\"8\","
               "kind=\"allreduce\"}"),
            1);
  EXPECT_EQ(at("maypole_errors_total{job=\"a\",uid=\"7\",kind=\"mismatch\"}"),
            1);
  EXPECT_EQ(at("maypole_errors_total{job=\"b\",uid=\"8\",kind=\"mismatch\"}"),
            0);
  EXPECT_EQ(at("maypole_waits_total{job=\"a\",uid=\"7\",for=\"nodes\"}"), 3);
  EXPECT_EQ(at("maypole_wait_seconds_total{job=\"a\",uid=\"7\",for=\"nodes\"}"),
            1.5);
  EXPECT_EQ(
      at("maypole_rank_late_seconds_total{job=\"a\",uid=\"7\",rank=\"9\"}"),
      0.25);
  EXPECT_EQ(
      at("maypole_rank_late_seconds_total{job=\"a\",uid=\"7\",rank=\"4\"}"), 0);
  EXPECT_EQ(v.count("maypole_rank_late_seconds_total{job=\"b\",uid=\"8\","
                    "rank=\"0\"}"),
            0u);
  const std::string gpu =
      "{job=\"a\",uid=\"7\",gpu=\"GPU-abcd0000-0000-0000-0000-000000000000\"}";
  EXPECT_EQ(at("maypole_gpu_memory_bytes" + gpu), 4096);
  EXPECT_EQ(at("maypole_gpu_operations_total" + gpu), 2);
  EXPECT_EQ(at("maypole_gpu_operation_seconds_total" + gpu), 0.5);
  EXPECT_EQ(at("maypole_gpu_site_operations_total{job=\"a\",uid=\"7\","
               "site=\"client\"}"),
            7);
  EXPECT_EQ(v.count("maypole_gpu_site_operations_total{job=\"a\",uid=\"7\","
                    "site=\"host\"}"),
            0u);
  EXPECT_EQ(at("maypole_gpu_wait_seconds_total" + gpu), 0.125);
  EXPECT_EQ(at("maypole_gpu_nccl_seconds_total" + gpu), 0.25);
  EXPECT_GT(at("maypole_executor_memory_bytes{job=\"a\",uid=\"7\"}"), 1e6);
  EXPECT_EQ(v.count("maypole_executor_memory_bytes{job=\"b\",uid=\"8\"}"), 0u);
  EXPECT_EQ(at("maypole_executors"), 2);
  metrics.Remove(1, true);
  v = Scrape(metrics);
  for (const auto& [name, value] : v) {
    EXPECT_EQ(name.find("job=\"a\""), std::string::npos) << name;
  }
  EXPECT_EQ(at("maypole_executor_crashes_total"), 1);
  EXPECT_EQ(at("maypole_executors_started_total"), 2);
}

// With a duplicate series, Prometheus would reject the metrics of all jobs.
TEST(WorkerMetrics, NoPageMakesASeriesTwice) {
  WorkerMetrics metrics;
  const auto old = NewPage(), now = NewPage();
  metrics.Add(1, {"a", 7, 0}, old);
  metrics.Add(2, {"a", 7, 0}, now);
  (*old)->runs = 5;
  for (const auto& page : {old, now}) {
    for (int i = 0; i < kMaxLocalRanks; ++i) {
      (*page)->rank_number[i] = i % 2 == 0 ? 4 : UINT64_MAX - i;
      (*page)->late_ns[i] = UINT64_MAX;
    }
  }
  std::istringstream lines(
      prometheus::TextSerializer().Serialize(metrics.Collect()));
  std::map<std::string, int> series;
  for (std::string line; std::getline(lines, line);) {
    if (line[0] != '#') ++series[line.substr(0, line.rfind(' '))];
  }
  for (const auto& [name, times] : series) EXPECT_EQ(times, 1) << name;
  const auto v = Scrape(metrics);
  EXPECT_EQ(v.at("maypole_executor_runs_total{job=\"a\",uid=\"7\"}"), 0);
  const std::string late = "maypole_rank_late_seconds_total";
  const auto first = v.lower_bound(late), end = v.lower_bound(late + "}");
  ASSERT_NE(first, end);
  EXPECT_EQ(first->first, late + "{job=\"a\",uid=\"7\",rank=\"3\"}");
  EXPECT_EQ(std::next(first)->first.find(late), std::string::npos);
}

TEST(WorkerMetrics, HistogramsAreCumulative) {
  WorkerMetrics metrics;
  const auto page = NewPage();
  metrics.Add(1, {"a", 7, 0}, page);
  (*page)->presence_ns.Observe(20'000, 1e-9);          // up to 30 us
  (*page)->presence_ns.Observe(500'000, 1e-9);         // up to 1 ms
  (*page)->presence_ns.Observe(90'000'000'000, 1e-9);  // beyond
  (*page)->run_operations.Observe(3, 1);
  const auto v = Scrape(metrics);
  const std::string job = "{job=\"a\",uid=\"7\"";
  const auto bucket = [&](const std::string& name, const std::string& le) {
    return v.at(name + "_bucket" + job + ",le=\"" + le + "\"}");
  };
  const std::string presence = "maypole_presence_seconds";
  EXPECT_EQ(bucket(presence, "1e-05"), 0);
  EXPECT_EQ(bucket(presence, "3e-05"), 1);
  EXPECT_EQ(bucket(presence, "0.001"), 2);
  EXPECT_EQ(bucket(presence, "60"), 2);
  EXPECT_EQ(bucket(presence, "+Inf"), 3);
  EXPECT_EQ(v.at(presence + "_count" + job + "}"), 3);
  EXPECT_DOUBLE_EQ(v.at(presence + "_sum" + job + "}"), 90.00052);
  EXPECT_EQ(bucket("maypole_fused_operations", "2"), 0);
  EXPECT_EQ(bucket("maypole_fused_operations", "4"), 1);
  EXPECT_EQ(v.at("maypole_fused_operations_sum" + job + "}"), 3);
}

}  // namespace
}  // namespace maypole::worker
