#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/properties/player/player.h"

namespace maypole::properties {
namespace {

using Sort = Agreement::Sort;

TEST(AgreementTest, TheFirstDecides) {
  auto a = std::make_unique<Agreement>();
  EXPECT_EQ(a->Check(0, Sort::kOperation, 3, "x"), "");
  EXPECT_EQ(a->Check(0, Sort::kOperation, 3, "x"), "");
  EXPECT_NE(a->Check(0, Sort::kOperation, 3, "y"), "");
  EXPECT_EQ(a->Check(0, Sort::kJoin, 3, "y"), "");
  EXPECT_EQ(a->Check(1, Sort::kOperation, 3, "y"), "");
  EXPECT_EQ(a->Check(4, Sort::kOperation, 3, "z"), "");  // the same place
  EXPECT_NE(a->Check(4, Sort::kOperation, 3, "x"), "");
}

TEST(AgreementTest, ByManyThreads) {
  auto a = std::make_unique<Agreement>();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t n = 0; n < 300; ++n) {
        wrong += !a->Check(7, Sort::kRequest, n % 32, "as all").empty();
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(AgreementTest, Joins) {
  auto a = std::make_unique<Agreement>();
  a->BeginJoin(5, 0, 0, 100);
  EXPECT_EQ(a->OthersJoined(5, 0, 2, 3), 0);
  a->BeginJoin(5, 0, 1, 300);
  EXPECT_EQ(a->OthersJoined(5, 0, 2, 3), 300);
  EXPECT_EQ(a->OthersJoined(9, 0, 2, 3), 0);
}

TEST(CoverageTest, CountsOnceAndPrints) {
  auto c = std::make_unique<Coverage>();
  OperationSpec o;
  o.kind = Kind::kAllreduce;
  o.op = Op::kMax;
  o.ranks = {1, 2};
  o.nodes = {0, 0};
  o.set = 1;
  o.aside = 0b10;  // rank 1
  o.shape = {{2}, {2}};
  o.odd_one = -1;
  c->Count(o, 1);
  c->Count(o, 2);
  c->Count(Event::kPrograms);
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  c->Print(file);
  std::string text(static_cast<size_t>(std::ftell(file)), 0);
  std::rewind(file);
  ASSERT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  const auto has = [&](const char* line) {
    return text.find(std::string(line) + "\n") != std::string::npos;
  };
  EXPECT_TRUE(has("count allreduce float32 max 1"));
  EXPECT_TRUE(has("count allreduce float32 sum 0"));
  EXPECT_TRUE(has("count alltoall bool - 0"));
  EXPECT_FALSE(has("count allreduce bool average 0"));
  EXPECT_TRUE(has("feature allreduce set_in_node 1"));
  EXPECT_TRUE(has("feature allreduce with_joined 1"));
  EXPECT_TRUE(has("event operations 1"));
  EXPECT_TRUE(has("event programs 1"));
}

}  // namespace
}  // namespace maypole::properties
