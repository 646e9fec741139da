#include "common/timeline/trace.h"

#include <gtest/gtest.h>

#include "common/limits.h"

namespace maypole {
namespace {

constexpr int64_t kMs = 1'000'000;

TimelineRecord Part(int rank, std::string_view name, int64_t arrived_ms,
                    uint32_t members = 2, uint32_t number = 1) {
  TimelineRecord r;
  r.kind = Kind::kAllreduce;
  r.rank = rank;
  r.members = members;
  r.number = number;
  r.bytes = 64;
  r.submitted = r.arrived = arrived_ms * kMs;
  r.begun = 500 * kMs;
  r.ended = 510 * kMs;
  r.name = name;
  return r;
}

std::string Packed(const TimelineRecord& record) {
  std::string packed;
  Append(record, &packed);
  return packed;
}

// --- Arrivals ----------------------------------------------------------------

TEST(Arrivals, LastRankAndHowLate) {
  Arrivals arrivals;
  EXPECT_TRUE(arrivals.Add(Part(0, "x", 100, 3), 0, 0).empty());
  EXPECT_TRUE(
      arrivals.Add(Part(2, "x", 1'300'130, 3), 1, -1'300'000 * kMs).empty());
  const auto done = arrivals.Add(Part(1, "x", 120, 3), 0, 0);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_TRUE(done[0].complete());
  const Lateness late = LatenessOf(done[0]);
  EXPECT_EQ(late.last_rank, 2);
  EXPECT_EQ(late.first, 100 * kMs);
  EXPECT_EQ(late.previous, 120 * kMs);
  EXPECT_EQ(late.last, 130 * kMs);
  EXPECT_EQ(LastOnNode(done[0], 0), 120 * kMs);
  EXPECT_EQ(LastOnNode(done[0], 1), 130 * kMs);
}

// Records may come in any order.
TEST(Arrivals, OrderOfRecordsDoesNotMatter) {
  const int64_t at[] = {5, 9, 7};
  for (const auto& order : {std::vector{0, 1, 2},
                            {0, 2, 1},
                            {1, 0, 2},
                            {1, 2, 0},
                            {2, 0, 1},
                            {2, 1, 0}}) {
    Arrivals arrivals;
    std::vector<OperationGroup> done;
    for (const int r : order) done = arrivals.Add(Part(r, "x", at[r], 3), 0, 0);
    ASSERT_EQ(done.size(), 1u);
    const Lateness late = LatenessOf(done[0]);
    EXPECT_EQ(late.last_rank, 1);
    EXPECT_EQ(late.previous, 7 * kMs);
    EXPECT_EQ(late.first, 5 * kMs);
  }
}

TEST(Arrivals, OperationsOfANameAreKeptApart) {
  Arrivals arrivals;
  EXPECT_TRUE(arrivals.Add(Part(0, "x", 1, 2, 1), 0, 0).empty());
  EXPECT_TRUE(arrivals.Add(Part(0, "x", 2, 2, 2), 0, 0).empty());
  EXPECT_EQ(arrivals.Add(Part(1, "x", 3, 2, 1), 0, 0).at(0).number, 1u);
  EXPECT_EQ(arrivals.Add(Part(1, "x", 4, 2, 2), 0, 0).at(0).number, 2u);
  EXPECT_TRUE(arrivals.TakeRest().empty());
}

TEST(Arrivals, WhatIsIncompleteIsGivenUp) {
  Arrivals arrivals;
  // The same rank again: the job has forgotten the name meanwhile.
  EXPECT_TRUE(arrivals.Add(Part(0, "x", 1), 0, 0).empty());
  auto out = arrivals.Add(Part(0, "x", 9), 0, 0);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_FALSE(out[0].complete());
  EXPECT_EQ(LatenessOf(out[0]).last_rank, -1);
  for (size_t i = 1; i < Arrivals::kMaxOpen; ++i) {
    EXPECT_TRUE(arrivals.Add(Part(0, std::to_string(i), 1), 0, 0).empty());
  }
  out = arrivals.Add(Part(0, "one more", 1), 0, 0);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].name, "x");
  EXPECT_EQ(arrivals.TakeRest().size(), Arrivals::kMaxOpen);
}

// --- Trace -------------------------------------------------------------------

TEST(Trace, TextInJsonsQuotes) {
  EXPECT_EQ(JsonString("a\"b\\c/d"), "\"a\\\"b\\\\c/d\"");
  EXPECT_EQ(JsonString(std::string_view("\n\0\x7f", 3)),
            "\"\\u000a\\u0000\\u007f\"");
  EXPECT_EQ(JsonString("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "\"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\"");
  // Bytes that are not UTF-8, a cut character, a surrogate, an overlong form.
  EXPECT_EQ(JsonString("\xff"), "\"\\ufffd\"");
  EXPECT_EQ(JsonString("x\xe2\x82"), "\"x\\ufffd\\ufffd\"");
  EXPECT_EQ(JsonString("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");
  EXPECT_EQ(JsonString("\xc0\xaf"), "\"\\ufffd\\ufffd\"");
}

TEST(Trace, NamesWhoWasLate) {
  Trace trace({"a", "b"});
  trace.Add(Packed(Part(0, "grad", 100)), 0, 0, 0);
  EXPECT_EQ(trace.TakeText(), "[");  // the other part may come
  trace.Add(Packed(Part(1, "grad", 300)), 1, 0, 0);
  trace.Finish();
  const std::string text = trace.TakeText();
  EXPECT_NE(text.find("\"name\":\"rank 0 (a)\""), std::string::npos);
  EXPECT_NE(text.find("\"name\":\"rank 1 (b)\""), std::string::npos);
  EXPECT_NE(text.find("\"name\":\"late by 200.0 ms for allreduce grad\""),
            std::string::npos);
  EXPECT_NE(text.find("\"last_rank\":1,\"late_after_previous_ms\":200.000000,"
                      "\"late_after_first_ms\":200.000000,"
                      "\"waited_ms\":200.000000"),
            std::string::npos);
  // Rank 0 waits for the other node until its data moves.
  EXPECT_NE(
      text.find("\"ts\":100000.000,\"dur\":400000.000,\"name\":\"NODES\""),
      std::string::npos);
  EXPECT_NE(text.find("\"ph\":\"s\""), std::string::npos);
  EXPECT_NE(text.find("\"ph\":\"f\""), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - 3), "\n]\n");
}

TEST(Trace, OperationsThatOverlapHaveTheirOwnTracks) {
  Trace trace({"a"});
  TimelineRecord one = Part(0, "one", 10, 1);
  TimelineRecord two = Part(0, "two", 20, 1);
  TimelineRecord three = Part(0, "three", 600, 1);
  three.begun = three.ended = 700 * kMs;
  trace.Add(Packed(one) + Packed(two) + Packed(three), 0, 0, 0);
  const std::string text = trace.TakeText();
  const auto tid_of = [&](const std::string& name) {
    const size_t at = text.find("\"name\":\"allreduce " + name + "\"");
    const size_t tid = text.rfind("\"tid\":", at) + 6;
    return text.substr(tid, text.find(',', tid) - tid);
  };
  EXPECT_EQ(tid_of("one"), "1");
  EXPECT_EQ(tid_of("two"), "2");
  EXPECT_EQ(tid_of("three"), "1");
}

TEST(Trace, LostRecordsAreTold) {
  Trace trace({"a"});
  trace.Add("", 0, 0, 17);
  EXPECT_NE(trace.TakeText().find("\"args\":{\"lost\":17}"), std::string::npos);
}

}  // namespace
}  // namespace maypole
