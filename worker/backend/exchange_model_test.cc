#include "worker/backend/exchange_model.h"

#include <gtest/gtest.h>

#include <vector>

#include "worker/backend/link_probe.h"

namespace maypole::worker {
namespace {

using Levels = std::vector<Level>;

// 25 Gbit/s, 20 us, 2 us for a message; reduces 8 GiB/s.
constexpr LinkCosts kFast = {20'000, 2'000, 335'000, 122'000};
constexpr uint64_t kChunk = 1 << 20;

TEST(ExchangeModel, CostsAreThoseOfTheMessagesInARow) {
  const ExchangeModel model({100, 10, 1 << 20, 1 << 19}, 4);
  // Twice latency, 3 messages, 3 of 4 parts of 400 bytes; 400 bytes to reduce.
  EXPECT_EQ(model.CostOf({{4}}, 400, false), 2 * (100 + 30 + 300) + 200u);
  EXPECT_EQ(model.CostOf({{4}}, 400, true), 2 * (30 + 300) + 200u);
  EXPECT_EQ(model.CostOf({{4, true}}, 400, false),
            100 + 30 + 3 * 400 + 2 * 400u);
  // The second level has half of the bytes.
  EXPECT_EQ(model.CostOf({{2}, {2, true}}, 400, false),
            2 * (100 + 10 + 200) + 200 + (100 + 10 + 200) + 200u);
}

TEST(ExchangeModel, ASmallChunkGoesAtOnceToAll) {
  ExchangeModel model(kFast, 4);
  EXPECT_EQ(model.LevelsFor(2, 4, false), Levels({{2, true}}));
  EXPECT_EQ(model.LevelsFor(8, 64, false), Levels({{8, true}}));
}

TEST(ExchangeModel, ALargeOneIsDividedAmongTheNodes) {
  ExchangeModel model(kFast, 4);
  EXPECT_EQ(model.LevelsFor(2, kChunk, true), Levels({{2}}));
  EXPECT_EQ(model.LevelsFor(8, kChunk, true), Levels({{8}}));
}

// 255 messages of 4 KiB each way would take longer than a second level.
TEST(ExchangeModel, ManyNodesHaveLevels) {
  ExchangeModel model(kFast, 4);
  const Levels levels = model.LevelsFor(256, kChunk, true);
  ASSERT_GT(levels.size(), 1u);
  uint32_t nodes = 1;
  for (const Level& level : levels) nodes *= level.nodes;
  EXPECT_FALSE(levels[0].exchanges_all);
  EXPECT_EQ(nodes, 256u);
  EXPECT_LT(model.CostOf(levels, kChunk, true),
            model.CostOf({{256}}, kChunk, true) * 6 / 10);
}

TEST(ExchangeModel, ALevelThatSavesLittleIsLeftOut) {
  ExchangeModel model(kFast, 4);
  EXPECT_EQ(model.LevelsFor(16, kChunk, true), Levels({{16}}));
  EXPECT_LT(model.CostOf({{4}, {4}}, kChunk, true),
            model.CostOf({{16}}, kChunk, true));
}

TEST(ExchangeModel, LevelsAreLimited) {
  ExchangeModel model(kFast, 1);
  EXPECT_EQ(model.LevelsFor(256, kChunk, true), Levels({{256}}));
  EXPECT_EQ(model.LevelsFor(256, 64, false).size(), 1u);
  EXPECT_EQ(ExchangeModel(kFast, 2).LevelsFor(1024, 64, false).size(), 2u);
}

TEST(ExchangeModel, PrimesAndSingleNodesHaveOneLevel) {
  ExchangeModel model(kFast, 4);
  EXPECT_EQ(model.LevelsFor(31, kChunk, true), Levels({{31}}));
  EXPECT_EQ(model.LevelsFor(1, kChunk, true).size(), 1u);
}

}  // namespace
}  // namespace maypole::worker
