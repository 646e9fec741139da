#include "coordinator/core/session_table.h"

#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

constexpr Time At(int seconds) { return std::chrono::seconds(seconds); }

TEST(SessionTable, AStreamBelongsToOneSession) {
  SessionTable table;
  ExecutorSession* const a = table.Add(1);
  table.Attach(a, 10);
  EXPECT_EQ(table.OfStream(10), a);
  table.Attach(a, 11);  // a newer stream
  EXPECT_EQ(table.OfStream(10), nullptr);
  EXPECT_EQ(table.OfStream(11), a);
  EXPECT_EQ(a->stream, 11u);
  EXPECT_EQ(table.Remove(1).stream, 11u);
  EXPECT_EQ(table.OfStream(11), nullptr);
  EXPECT_TRUE(table.empty());
}

TEST(SessionTable, ASessionHasAStreamOrADeadline) {
  SessionTable table;
  for (const SessionId id : {1, 2, 3}) table.Attach(table.Add(id), 10 + id);
  EXPECT_FALSE(table.any_detached());
  table.Detach(table.Find(2), At(9));
  table.Detach(table.Find(1), At(5));
  EXPECT_EQ(table.OfStream(12), nullptr);
  EXPECT_EQ(table.FirstDetached(), (std::pair<Time, SessionId>(At(5), 1)));
  table.Attach(table.Find(1), 20);
  EXPECT_EQ(table.FirstDetached(), (std::pair<Time, SessionId>(At(9), 2)));
  table.Detach(table.Find(3), At(8));
  table.Postpone(At(30));
  EXPECT_EQ(table.FirstDetached(), (std::pair<Time, SessionId>(At(30), 2)));
  EXPECT_EQ(*table.at(3).deadline, At(30));
  table.Remove(2);
  EXPECT_EQ(table.FirstDetached().second, 3u);
  table.Remove(3);
  EXPECT_FALSE(table.any_detached());
  EXPECT_EQ(table.Find(3), nullptr);
  EXPECT_EQ(table.size(), 1u);
}

TEST(SessionTable, WhatOneNodeHasNotReceivedIsNotAcknowledged) {
  SessionTable table;
  table.Add(1);
  EXPECT_EQ(table.AcknowledgedDecisions(7), 7u);
  table.Add(2)->decisions = {{3, 5}, {4, 7}};
  EXPECT_EQ(table.AcknowledgedDecisions(7), 4u);
  table.at(2).decisions.pop_front();
  EXPECT_EQ(table.AcknowledgedDecisions(7), 6u);
}

}  // namespace
}  // namespace maypole::coordinator
