#include "common/metrics/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>

#include "common/system/fd.h"

namespace maypole {
namespace {

constexpr char kStat[] =
    "77 (a (name) S 1) R 1 77 77 0 -1 4194560 500 6 7 8 250 50 0 0 20 0 3 0 "
    "12345 4096000 100 18446744073709551615 1 1\n";

std::map<std::string, double> Now() {
  std::map<std::string, double> values;
  for (const auto& family : ProcessMetrics().Collect()) {
    const auto& metric = family.metric.at(0);
    values[family.name] = family.type == prometheus::MetricType::Counter
                              ? metric.counter.value
                              : metric.gauge.value;
  }
  return values;
}

TEST(ProcessTest, ReadsTheFieldsAfterAnyName) {
  const auto use = ParseProcessStat(kStat, 100, 4096);
  ASSERT_TRUE(use);
  EXPECT_DOUBLE_EQ(use->cpu_seconds, 3.0);
  EXPECT_DOUBLE_EQ(use->started, 123.45);
  EXPECT_EQ(use->virtual_bytes, 4096000u);
  EXPECT_EQ(use->resident_bytes, 409600u);
}

TEST(ProcessTest, OtherTextsAreNoProcess) {
  for (const std::string text :
       {"", "77", "77 (x) R 1 2", "77 (x R 1 77 77 0 -1 4194560 500 6 7"}) {
    EXPECT_FALSE(ParseProcessStat(text, 100, 4096)) << text;
  }
  EXPECT_FALSE(ReadProcessUse(-1));
}

TEST(ProcessTest, TellsOfThisProcess) {
  const auto before = Now();
  EXPECT_EQ(before.size(), 6u);
  EXPECT_GT(before.at("process_resident_memory_bytes"), 1e6);
  EXPECT_GT(before.at("process_virtual_memory_bytes"),
            before.at("process_resident_memory_bytes"));
  const double now = std::chrono::duration<double>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  EXPECT_GT(before.at("process_start_time_seconds"), now - 600);
  EXPECT_LT(before.at("process_start_time_seconds"), now + 5);
  const Fd one(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd two(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(Now().at("process_open_fds"), before.at("process_open_fds") + 2);
  EXPECT_GE(Now().at("process_max_fds"), Now().at("process_open_fds"));
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin <
         std::chrono::milliseconds(200)) {
  }
  EXPECT_GT(Now().at("process_cpu_seconds_total"),
            before.at("process_cpu_seconds_total"));
}

}  // namespace
}  // namespace maypole
