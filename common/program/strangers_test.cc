#include "common/program/strangers.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace maypole {
namespace {

TEST(StrangersTest, ACrowdDisplacesItself) {
  Strangers<int> strangers(4);
  const auto other = strangers.Add(7);
  other->value = 70;
  for (int i = 0; i < 100; ++i) {
    strangers.Add(9)->value = i;
    if (const auto surplus = strangers.Surplus()) {
      EXPECT_EQ((*surplus)->network, 9u);
      EXPECT_EQ((*surplus)->value, i - 3);
      strangers.Erase(*surplus);
    }
  }
  EXPECT_EQ(strangers.size(), 4u);
  EXPECT_EQ(strangers.begin()->value, 70);
}

TEST(StrangersTest, WhoHasTheMostGoesWhoeverComesAndGoes) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    Strangers<int> strangers(8);
    for (int i = 0; i < 400; ++i) {
      strangers.Add(random() % 5)->value = i;
      if (random() % 3 == 0) {
        auto gone = strangers.begin();
        std::advance(gone, random() % strangers.size());
        strangers.Erase(gone);
      }
      const auto surplus = strangers.Surplus();
      ASSERT_EQ(surplus.has_value(), strangers.size() > 8) << seed;
      if (!surplus) continue;
      std::vector<size_t> counts(5);
      for (const auto& s : strangers) ++counts[s.network];
      for (const size_t count : counts) {
        EXPECT_LE(count, counts[(*surplus)->network]) << seed;
      }
      for (const auto& s : strangers) {
        if (s.network == (*surplus)->network) {
          EXPECT_EQ(s.value, (*surplus)->value) << seed;  // the oldest
          break;
        }
      }
      strangers.Erase(*surplus);
    }
  }
}

}  // namespace
}  // namespace maypole
