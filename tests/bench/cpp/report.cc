#include "tests/bench/cpp/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace maypole::bench {
namespace {

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char line[256];
  const int n = std::snprintf(line, sizeof(line), format, args...);
  return std::string(line, std::min<size_t>(n, sizeof(line) - 1));
}

// Algorithm bandwidth: a tensor's bytes, once, in the median time.
double GigabytesPerSecond(const Row& row) {
  return static_cast<double>(row.bytes) / Percentile(row.times, 50) / 1e3;
}

std::string RowJson(const Row& row) {
  std::string text = Format(
      "    {\"label\": \"%s\", \"bytes\": %lld, \"tensors\": %d, \"rounds\": "
      "%zu,\n     \"median_us\": %.3f, \"p90_us\": %.3f, \"gb_per_s\": %.6f,\n"
      "     \"times_us\": [",
      row.label.c_str(), static_cast<long long>(row.bytes), row.tensors,
      row.times.size(), Percentile(row.times, 50), Percentile(row.times, 90),
      GigabytesPerSecond(row));
  for (size_t i = 0; i < row.times.size(); ++i) {
    text += Format("%s%.3f", i > 0 ? ", " : "", row.times[i]);
  }
  return text + "]}";
}

}  // namespace

double Percentile(std::vector<double> values, double percent) {
  std::sort(values.begin(), values.end());
  const double at = percent / 100 * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double part = at - std::floor(at);
  return values[below] * (1 - part) + values[above] * part;
}

std::vector<double> SlowestRank(const std::vector<double>& times, int ranks) {
  const size_t rounds = times.size() / static_cast<size_t>(ranks);
  std::vector<double> slowest(rounds, 0.0);
  for (size_t i = 0; i < times.size(); ++i) {
    slowest[i % rounds] = std::max(slowest[i % rounds], times[i]);
  }
  return slowest;
}

std::string HeadText(const Title& title) {
  return Format(
             "allreduce, sum of float32, in place; %s API, %d ranks on %d "
             "nodes\n",
             title.api.c_str(), title.ranks, title.nodes) +
         Format("%-10s %12s %8s %7s %12s %12s %9s\n", "case", "bytes",
                "tensors", "rounds", "median us", "p90 us", "GB/s");
}

std::string RowText(const Row& row) {
  return Format("%-10s %12lld %8d %7zu %12.1f %12.1f %9.3f\n",
                row.label.c_str(), static_cast<long long>(row.bytes),
                row.tensors, row.times.size(), Percentile(row.times, 50),
                Percentile(row.times, 90), GigabytesPerSecond(row));
}

std::string JsonText(const Title& title, const std::vector<Row>& rows) {
  std::string text = Format(
      "{\n  \"api\": \"%s\",\n  \"ranks\": %d,\n  \"nodes\": %d,\n"
      "  \"cases\": [\n",
      title.api.c_str(), title.ranks, title.nodes);
  for (size_t i = 0; i < rows.size(); ++i) {
    text += RowJson(rows[i]) + (i + 1 < rows.size() ? ",\n" : "\n");
  }
  return text + "  ]\n}\n";
}

}  // namespace maypole::bench
