#include "client/engine/result_log.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "client/testing/rank_core_testing.h"
#include "common/checksum/checksum.h"

namespace maypole {
namespace {

session::ResultRecord Record(uint32_t slot) {
  session::ResultRecord record;
  record.slot = slot;
  record.generation = 1;
  return record;
}

class ResultLogTest : public testing::Test {
 protected:
  // The messages that have been sent since the last call.
  std::vector<session::ResultRecords> Sent() {
    std::vector<session::ResultRecords> messages;
    for (const auto& bytes : std::exchange(shell_.sent, {})) {
      messages.emplace_back();
      EXPECT_TRUE(
          session::Parse(bytes.data(), bytes.size(), &messages.back()).ok());
    }
    return messages;
  }
  void Add(uint32_t count) {
    for (; count > 0; --count) log_.Add(Record(added_++));
  }

  Shell shell_;
  ResultLog log_{&shell_};
  uint32_t added_ = 0;
};

TEST_F(ResultLogTest, TheFirstRecordLeavesAfterThePause) {
  EXPECT_FALSE(log_.waits());
  Add(2);
  EXPECT_TRUE(log_.waits());
  log_.SendDue(10);
  log_.SendDue(10 + kResultPauseNs - 1);
  EXPECT_TRUE(Sent().empty());
  log_.SendDue(10 + kResultPauseNs);
  const auto messages = Sent();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].count, 2u);
  EXPECT_EQ(messages[0].records[0].slot, 0u);
  EXPECT_EQ(messages[0].records[1].slot, 1u);
  EXPECT_FALSE(log_.waits());
  Add(1);
  log_.SendDue(10 + 2 * kResultPauseNs);
  EXPECT_TRUE(Sent().empty()) << "it has just come";
}

TEST_F(ResultLogTest, AFullMessageLeavesAtOnce) {
  Add(kMaxResultRecords + 1);
  const auto messages = Sent();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].count, kMaxResultRecords);
  log_.SendDue(0);
  EXPECT_TRUE(Sent().empty());
  log_.SendAll();
  EXPECT_EQ(Sent().at(0).records[0].slot, kMaxResultRecords);
}

TEST_F(ResultLogTest, TheOrderSurvivesAMessageThatCouldNotBeSent) {
  shell_.no_room = true;
  Add(kMaxResultRecords + 3);
  log_.SendDue(0);
  EXPECT_TRUE(Sent().empty());
  EXPECT_TRUE(log_.waits());
  shell_.no_room = false;
  log_.SendDue(0);
  log_.SendDue(kResultPauseNs);
  const auto messages = Sent();
  ASSERT_EQ(messages.size(), 2u);
  for (uint32_t i = 0; i < kMaxResultRecords; ++i) {
    EXPECT_EQ(messages[0].records[i].slot, i);
  }
  EXPECT_EQ(messages[1].count, 3u);
  EXPECT_EQ(messages[1].records[2].slot, kMaxResultRecords + 2);
}

TEST_F(ResultLogTest, BeyondTheLimitRecordsAreCountedAndDropped) {
  const auto most = static_cast<uint32_t>(kMaxKeptResultRecords);
  shell_.no_room = true;
  Add(most + 7);
  log_.SendAll();
  uint32_t kept = 0, dropped = 0;
  for (const session::ResultRecords& message : Sent()) {
    EXPECT_EQ(dropped, 0u) << "they came last";
    kept += message.count;
    dropped += message.dropped;
  }
  EXPECT_EQ(kept, most);
  EXPECT_EQ(dropped, 7u);
}

class MakeResultRecordTest : public testing::Test {
 protected:
  MakeResultRecordTest() {
    op_.slot = 3;
    op_.generation = 9;
    op_.signature.dtype = DType::kInt32;
    op_.signature.dims = 1;
    op_.signature.shape[0] = static_cast<int64_t>(values_.size());
    op_.output = reinterpret_cast<std::byte*>(values_.data());
  }
  std::vector<int32_t> values_ = {1, 2, 3};
  Operation op_;
};

TEST_F(MakeResultRecordTest, HasTheChecksumOfTheOutput) {
  const session::ResultRecord record = MakeResultRecord(op_, true);
  EXPECT_EQ(record.slot, 3u);
  EXPECT_EQ(record.generation, 9u);
  EXPECT_EQ(record.bytes, 12u);
  EXPECT_EQ(record.checksum, Checksum(values_.data(), 12));
}

TEST_F(MakeResultRecordTest, OfAGatheredResultTheGatheredBytesCount) {
  op_.signature.kind = Kind::kAllgather;
  op_.SetGathered(8, 2);
  const session::ResultRecord record = MakeResultRecord(op_, true);
  EXPECT_EQ(record.bytes, 8u);
  EXPECT_EQ(record.checksum, Checksum(values_.data(), 8));
}

TEST_F(MakeResultRecordTest, WithoutAResultInHostMemoryThereIsNoChecksum) {
  const uint64_t none = session::ResultRecord::kNoResult;
  EXPECT_EQ(MakeResultRecord(op_, false).bytes, none);
  op_.ran_on_gpu = true;
  EXPECT_EQ(MakeResultRecord(op_, true).bytes, none);
  op_.ran_on_gpu = false;
  op_.output = nullptr;
  EXPECT_EQ(MakeResultRecord(op_, true).bytes, none);
}

}  // namespace
}  // namespace maypole
