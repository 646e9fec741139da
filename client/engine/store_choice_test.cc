#include "client/engine/store_choice.h"

#include <gtest/gtest.h>

namespace maypole {
namespace {

// Simulates `runs` runs with these times per byte; counts the streamed ones.
int Play(StoreChoice& choice, int runs, double cached, double streamed) {
  int count = 0;
  for (int i = 0; i < runs; ++i) {
    const StoreChoice::Decision d = choice.Next();
    if (d.store == Store::kStreamed) ++count;
    if (!d.measure) continue;
    choice.Record(d.store, d.store == Store::kCached ? cached : streamed);
  }
  return count;
}

TEST(StoreChoiceTest, TriesStreamingOnceInAPeriodAndStaysWithTheCache) {
  StoreChoice choice;
  EXPECT_EQ(Play(choice, 320, 1.0, 1.2), 10);
  EXPECT_EQ(Play(choice, 320, 1.0, 0.95), 10);  // not clearly better
}

TEST(StoreChoiceTest, FollowsTheMachineBothWays) {
  StoreChoice choice;
  Play(choice, 64, 0.2, 0.25);
  Play(choice, 128, 0.8, 0.27);                // the cores are far now
  EXPECT_EQ(Play(choice, 32, 0.8, 0.27), 31);  // all but the trial
  Play(choice, 128, 0.2, 0.25);                // near again
  EXPECT_EQ(Play(choice, 32, 0.2, 0.25), 1);
}

TEST(StoreChoiceTest, AllRanksTryTheSameKindAtTheSameTime) {
  StoreChoice a, b;
  for (int i = 0; i < 500; ++i) {
    const StoreChoice::Decision x = a.Next(), y = b.Next();
    ASSERT_EQ(x.measure, y.measure);
    if (!x.measure) continue;
    ASSERT_EQ(x.store, y.store);
    a.Record(x.store, x.store == Store::kCached ? 1 : 2);
    b.Record(y.store, y.store == Store::kCached ? 2 : 1);  // sees otherwise
  }
}

}  // namespace
}  // namespace maypole
