#include "coordinator/core/admin/events.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::ElementsAre;

std::vector<uint64_t> Numbers(const EventRing::Page& page) {
  std::vector<uint64_t> out;
  for (const EventRing::Event& e : page.events) out.push_back(e->number());
  return out;
}

TEST(LogFieldTest, FindsKeysAndIsNotDeceivedByValues) {
  const char line[] =
      R"(event=epoch_end reason="said \"job=x\" job=y" job=train epoch=3)";
  EXPECT_EQ(LogField(line, "event"), "epoch_end");
  EXPECT_EQ(LogField(line, "job"), "train");
  EXPECT_EQ(LogField(line, "epoch"), "3");
  EXPECT_EQ(LogField(line, "reason"), R"(said \"job=x\" job=y)");
  EXPECT_EQ(LogField(line, "node"), "");
  EXPECT_EQ(LogField("", "job"), "");
  EXPECT_EQ(LogField("no keys at all", "job"), "");
  EXPECT_EQ(LogField("reason=\"never ends job=x", "job"), "");
}

TEST(EventRingTest, SaysWhatWasSaidOfAnEvent) {
  EventRing ring;
  ring.Add(12.5, Level::kWarning, "event=rank_lost job=a rank=3");
  const EventRing::Page page = ring.Read("", 0, 10);
  ASSERT_EQ(page.events.size(), 1u);
  const proto::Event& e = *page.events[0];
  EXPECT_EQ(e.number(), 1u);
  EXPECT_EQ(e.unix_seconds(), 12.5);
  EXPECT_EQ(e.level(), "warning");
  EXPECT_EQ(e.job(), "a");
  EXPECT_EQ(e.kind(), "rank_lost");
  EXPECT_EQ(e.text(), "event=rank_lost job=a rank=3");
  ring.Add(13, Level::kInfo, "event=x reason=" + std::string(5000, 'y'));
  EXPECT_EQ(ring.Read("", 1, 1).events[0]->text().size(), kMaxEventBytes);
}

TEST(EventRingTest, ReadsPagesOfAllOrOfOneJob) {
  EventRing ring;
  for (int i = 0; i < 6; ++i) {
    ring.Add(i, Level::kInfo, i % 2 == 0 ? "job=a" : "job=b");
  }
  EventRing::Page page = ring.Read("", 0, 4);
  EXPECT_THAT(Numbers(page), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(page.after, 4u);
  page = ring.Read("", page.after, 4);
  EXPECT_THAT(Numbers(page), ElementsAre(5, 6));
  EXPECT_EQ(page.after, ring.last());
  EXPECT_EQ(page.forgotten, 0u);
  page = ring.Read("b", 0, 4);
  EXPECT_THAT(Numbers(page), ElementsAre(2, 4));
  EXPECT_THAT(Numbers(ring.Read("b", page.after, 4)), ElementsAre(6));
  page = ring.Read("nobody", 0, 100);
  EXPECT_TRUE(page.events.empty());
  EXPECT_EQ(page.after, 6u);
}

TEST(EventRingTest, ForgetsTheOldestAndSaysHowMany) {
  EventRing ring(3);
  EXPECT_EQ(ring.Read("", 0, 10).after, 0u);
  for (int i = 0; i < 8; ++i) ring.Add(i, Level::kInfo, "job=a");
  EventRing::Page page = ring.Read("", 2, 10);
  EXPECT_THAT(Numbers(page), ElementsAre(6, 7, 8));
  EXPECT_EQ(page.forgotten, 3u);
  EXPECT_EQ(ring.Read("", 5, 10).forgotten, 0u);
  // A number that only another coordinator can have given.
  page = ring.Read("", 1000, 10);
  EXPECT_TRUE(page.events.empty());
  EXPECT_EQ(page.after, 8u);
}

}  // namespace
}  // namespace maypole::coordinator
