// Statistics of the rounds, and their tables.
//
// A round's time is that of its slowest rank. All times are in microseconds.
// report.py is the Python twin and prints the same.
//
// Thread contract: pure functions and values.
#ifndef MAYPOLE_TESTS_BENCH_CPP_REPORT_H_
#define MAYPOLE_TESTS_BENCH_CPP_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace maypole::bench {

// The value below which `percent` % of `values` lie, interpolated between the
// two nearest (percent 50: the median). `values` must not be empty.
double Percentile(std::vector<double> values, double percent);

// `times` holds each rank's rounds, rank after rank; the result the maximum
// over the ranks of each round.
std::vector<double> SlowestRank(const std::vector<double>& times, int ranks);

struct Row {
  std::string label;
  int64_t bytes = 0;
  int tensors = 0;
  std::vector<double> times;  // of the measured rounds; at least one
};

struct Title {
  std::string api;  // "C++", "maypole.torch"
  int ranks = 0;
  int nodes = 0;
};

// Two lines: a description of the measurement, and the names of the columns.
std::string HeadText(const Title& title);
std::string RowText(const Row& row);  // one line

std::string JsonText(const Title& title, const std::vector<Row>& rows);

}  // namespace maypole::bench

#endif  // MAYPOLE_TESTS_BENCH_CPP_REPORT_H_
