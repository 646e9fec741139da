#include "client/session/timeline_outbox.h"

#include <gtest/gtest.h>

#include <vector>

namespace maypole {
namespace {

constexpr uint32_t kOn = 3;  // timeline 1
constexpr uint32_t kOff = 2;

struct Rank {
  int Step(uint32_t word, int64_t now, uint32_t pending = 0,
           bool leaving = false) {
    return outbox.Step(
        word, pending, now,
        [this](const void* data, size_t bytes) {
          if (room == 0) return Status(Code::kResourceExhausted, "full");
          --room;
          session::TimelineRecords m;
          EXPECT_TRUE(session::CheckHeader(data, bytes, "client").ok());
          EXPECT_TRUE(session::Parse(data, bytes, &m).ok());
          ForRecords(
              {reinterpret_cast<const char*>(m.data), m.bytes},
              [this](const TimelineRecord& r) { names.emplace_back(r.name); });
          dropped += m.dropped;
          last += m.last;
          number = m.number;
          return Status();
        },
        leaving);
  }
  void Add(std::string_view name, uint32_t word = kOn) {
    TimelineRecord r;
    r.name = name;
    outbox.Add(word, r);
  }

  TimelineOutbox outbox;
  int room = 1 << 30;
  std::vector<std::string> names;
  uint32_t dropped = 0;
  uint32_t last = 0;
  uint32_t number = 0;
};

TEST(TimelineOutbox, SendsEveryPeriodAndAtTheEnd) {
  Rank r;
  EXPECT_EQ(r.Step(0, 5), TimelineOutbox::kNever);
  r.Add("a");
  EXPECT_EQ(r.Step(kOn, 1000), TimelineOutbox::kPeriodMs);
  EXPECT_EQ(r.names, std::vector<std::string>{"a"});
  r.Add("b");
  EXPECT_EQ(r.Step(kOn, 1040), 60);
  EXPECT_EQ(r.names.size(), 1u);
  EXPECT_EQ(r.Step(kOn, 1100), TimelineOutbox::kPeriodMs);
  EXPECT_EQ(r.names.size(), 2u);
  r.Add("c");
  EXPECT_EQ(r.Step(kOff, 1110), TimelineOutbox::kNever);
  EXPECT_EQ(r.names, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(r.last, 1u);
  EXPECT_EQ(r.number, 1u);
  EXPECT_EQ(r.Step(kOff, 2000), TimelineOutbox::kNever);
  EXPECT_EQ(r.last, 1u);
}

// A rank that has missed the whole timeline must also answer.
TEST(TimelineOutbox, AnswersATimelineThatItHasMissed) {
  Rank r;
  EXPECT_EQ(r.Step(kOff, 1000), TimelineOutbox::kNever);
  EXPECT_EQ(r.last, 1u);
}

TEST(TimelineOutbox, WaitsForOperationsThatBeganBeforeTheEnd) {
  Rank r;
  r.Step(kOn, 1000);
  EXPECT_LE(r.Step(kOff, 1010, /*pending=*/1), 10);
  EXPECT_EQ(r.last, 0u);
  r.Add("late", kOff);
  EXPECT_EQ(r.Step(kOff, 1020, 0), TimelineOutbox::kNever);
  EXPECT_EQ(r.names, std::vector<std::string>{"late"});
  EXPECT_EQ(r.last, 1u);
}

TEST(TimelineOutbox, DoesNotWaitForThemForEver) {
  Rank r;
  r.Step(kOff, 1000, 1);
  EXPECT_EQ(r.last, 0u);
  EXPECT_EQ(r.Step(kOff, 1000 + TimelineOutbox::kLateMs, 1),
            TimelineOutbox::kNever);
  EXPECT_EQ(r.last, 1u);
}

TEST(TimelineOutbox, AFullSocketLosesNothing) {
  Rank r;
  const std::string name(500, 'x');
  for (int i = 0; i < 40; ++i) r.Add(name);
  int64_t now = 1000;
  while (r.names.size() < 40) {
    r.room = 1;
    const int again = r.Step(kOn, now);
    EXPECT_LE(again, TimelineOutbox::kPeriodMs);
    now += again;
    ASSERT_LT(now, 10000);
  }
  r.room = 0;
  EXPECT_LT(r.Step(kOff, now += 1000), 10);
  EXPECT_EQ(r.last, 0u);
  r.room = 1;
  r.Step(kOff, now += 1000);
  EXPECT_EQ(r.last, 1u);
}

TEST(TimelineOutbox, WhatDoesNotFitIsCounted) {
  Rank r;
  const std::string name(500, 'x');
  const size_t each = 72 + 504;
  const size_t fit = TimelineOutbox::kMaxBytes / each;
  for (size_t i = 0; i < fit + 3; ++i) r.Add(name);
  r.Step(kOn, 1000);
  EXPECT_EQ(r.names.size(), fit);
  EXPECT_EQ(r.dropped, 3u);
}

TEST(TimelineOutbox, LeavingSendsAllAtOnce) {
  Rank r;
  r.Step(kOn, 1000);
  r.Add("a");
  EXPECT_EQ(r.Step(kOn, 1001, 0, /*leaving=*/true), TimelineOutbox::kNever);
  EXPECT_EQ(r.names, std::vector<std::string>{"a"});
  EXPECT_EQ(r.last, 1u);
}

TEST(TimelineOutbox, TheNextTimelineBeginsEmpty) {
  Rank r;
  r.Add("old");
  EXPECT_EQ(r.Step(kOff, 1000), TimelineOutbox::kNever);
  r.Add("late", kOff);
  r.Add("new", 5);
  r.Step(5, 2000);
  EXPECT_EQ(r.names, (std::vector<std::string>{"old", "new"}));
  EXPECT_EQ(r.number, 2u);
}

}  // namespace
}  // namespace maypole
