#include "tests/gpu/probe/lab/report.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::probe {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

TEST(ReportTest, TableHasTheMachineThenRowsByFact) {
  Report report;
  report.SetMachine("device", "A");
  report.SetMachine("NCCL", "2.28.9");
  report.SetMachine("device", "B");
  report.Add({3, "flags", Outcome::kMeasured, "3 us", {{"p50", 3, "us"}}});
  report.NotMeasured(1, "kernels, MPS", "no MPS here");
  report.Failed(3, "events", absl::InternalError("lost\ncontext"));
  EXPECT_THAT(
      Lines(report.Table()),
      testing::ElementsAre(
          "device: B", "NCCL: 2.28.9", "",
          "fact  what                            outcome       seen" +
              std::string(58, ' ') + "figures",
          "1     kernels, MPS                    not measured  no MPS here",
          "3     flags                           measured      3 us" +
              std::string(58, ' ') + "p50 3 us",
          "3     events                          failed        lost context"));
}

TEST(ReportTest, TableIsNoWiderThan160AndLosesNothing) {
  Report report;
  std::string text, name;
  std::vector<Figure> figures;
  for (int i = 100; i < 160; ++i) {
    text += "word" + std::to_string(i) + " ";
    name += "n" + std::to_string(i) + " ";
    figures.push_back({"figure" + std::to_string(i), i * 1.0, "GB/s"});
  }
  text += std::string(200, 'x');
  report.Add({1, name, Outcome::kMeasured, text, figures});
  const std::string table = report.Table();
  for (const std::string& line : Lines(table)) EXPECT_LE(line.size(), 160u);
  for (int i = 100; i < 160; ++i) {
    const std::string n = std::to_string(i);
    EXPECT_THAT(table, testing::HasSubstr("word" + n));
    EXPECT_THAT(table, testing::HasSubstr("n" + n));
    EXPECT_THAT(table, testing::HasSubstr("figure" + n + " " + n + " GB/s"));
  }
  EXPECT_EQ(std::count(table.begin(), table.end(), 'x'), 200);
}

TEST(ReportTest, FiguresInTheTableHaveFourDigitsOrAllBeforeThePoint) {
  Report report;
  report.Add({1,
              "a",
              Outcome::kMeasured,
              "",
              {{"small", 0.000123456, "s"},
               {"middle", 12.3456, ""},
               {"large", 143771.4, "MiB"}}});
  const std::string table = report.Table();
  EXPECT_THAT(table, testing::HasSubstr("small 0.0001235 s, middle 12.35,"));
  EXPECT_THAT(table, testing::HasSubstr("large 143771 MiB"));
}

TEST(ReportTest, JsonHoldsEverythingUnrounded) {
  Report report;
  report.SetMachine("cpu", "a \"b\"\\c");
  report.Add({2,
              "x",
              Outcome::kMeasured,
              "tab\there",
              {{"third", 1.0 / 3, "s"},
               {"none", std::numeric_limits<double>::quiet_NaN(), ""}}});
  report.NotMeasured(1, "y", "why");
  EXPECT_EQ(report.Json(), R"({
  "version": 1,
  "machine": {
    "cpu": "a \"b\"\\c"
  },
  "rows": [
    {"fact": 1, "name": "y",
     "outcome": "not measured",
     "text": "why",
     "figures": []},
    {"fact": 2, "name": "x",
     "outcome": "measured",
     "text": "tab\u0009here",
     "figures": [{"name": "third", "value": 0.33333333333333331, "unit": "s"},
      {"name": "none", "value": null, "unit": ""}]}
  ]
}
)");
}

}  // namespace
}  // namespace maypole::probe
