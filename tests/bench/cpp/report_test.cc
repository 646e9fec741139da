#include "tests/bench/cpp/report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::bench {
namespace {

using ::testing::ElementsAre;

TEST(Percentile, OfFewValues) {
  EXPECT_EQ(Percentile({7}, 50), 7);
  EXPECT_EQ(Percentile({7}, 90), 7);
  EXPECT_EQ(Percentile({3, 1, 2}, 50), 2);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 50), 2.5);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 0), 1);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 100), 4);
}

TEST(Percentile, LiesBetweenTheNearestTwo) {
  std::vector<double> values;
  for (int i = 11; i >= 1; --i) values.push_back(i * 10);
  EXPECT_EQ(Percentile(values, 50), 60);
  EXPECT_EQ(Percentile(values, 90), 100);
  EXPECT_DOUBLE_EQ(Percentile(values, 95), 105);
}

TEST(SlowestRank, OfEachRound) {
  EXPECT_THAT(SlowestRank({1, 5, 3,  //
                           2, 4, 9},
                          2),
              ElementsAre(2, 5, 9));
  EXPECT_THAT(SlowestRank({1, 5, 3}, 1), ElementsAre(1, 5, 3));
}

// report_test.py expects the same texts.
TEST(Report, Table) {
  EXPECT_EQ(HeadText({"C++", 4, 2}),
            "allreduce, sum of float32, in place; C++ API, 4 ranks on 2 nodes\n"
            "case              bytes  tensors  rounds    median us       p90 us"
            "      GB/s\n");
  EXPECT_EQ(RowText({"64 KiB", 65536, 1, {100, 300, 200.25}}),
            "64 KiB            65536        1       3        200.2        280.1"
            "     0.327\n");
}

TEST(Report, Json) {
  EXPECT_EQ(JsonText({"C++", 4, 2}, {{"4 B", 4, 1, {2, 4}},  //
                                     {"8 B", 8, 1, {0.5}}}),
            "{\n  \"api\": \"C++\",\n  \"ranks\": 4,\n  \"nodes\": 2,\n"
            "  \"cases\": [\n"
            "    {\"label\": \"4 B\", \"bytes\": 4, \"tensors\": 1, "
            "\"rounds\": 2,\n"
            "     \"median_us\": 3.000, \"p90_us\": 3.800, "
            "\"gb_per_s\": 0.001333,\n"
            "     \"times_us\": [2.000, 4.000]},\n"
            "    {\"label\": \"8 B\", \"bytes\": 8, \"tensors\": 1, "
            "\"rounds\": 1,\n"
            "     \"median_us\": 0.500, \"p90_us\": 0.500, "
            "\"gb_per_s\": 0.016000,\n"
            "     \"times_us\": [0.500]}\n"
            "  ]\n}\n");
}

}  // namespace
}  // namespace maypole::bench
