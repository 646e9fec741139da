#include "client/engine/result_log.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/checksum/checksum.h"

namespace maypole {
namespace {

session::ResultRecord Record(uint32_t slot) {
  session::ResultRecord record;
  record.slot = slot;
  record.generation = 1;
  return record;
}

TEST(ResultLogTest, TheFirstRecordLeavesAfterThePause) {
  ResultLog log;
  EXPECT_FALSE(log.Due(5));
  log.Add(Record(1));
  log.Add(Record(2));
  EXPECT_FALSE(log.Due(10));
  EXPECT_FALSE(log.Due(10 + kResultPauseNs - 1));
  EXPECT_TRUE(log.Due(10 + kResultPauseNs));
  const session::ResultRecords message = log.Take();
  EXPECT_EQ(message.count, 2u);
  EXPECT_EQ(message.records[0].slot, 1u);
  EXPECT_EQ(message.records[1].slot, 2u);
  EXPECT_TRUE(log.empty());
  log.Add(Record(3));
  EXPECT_FALSE(log.Due(10 + 2 * kResultPauseNs)) << "it has just come";
}

TEST(ResultLogTest, AFullMessageLeavesAtOnce) {
  ResultLog log;
  for (uint32_t i = 0; i < kMaxResultRecords + 1; ++i) log.Add(Record(i));
  EXPECT_TRUE(log.full());
  EXPECT_TRUE(log.Due(0));
  EXPECT_EQ(log.Take().count, kMaxResultRecords);
  EXPECT_FALSE(log.Due(0));
  EXPECT_EQ(log.Take().records[0].slot, kMaxResultRecords);
}

TEST(ResultLogTest, TheOrderSurvivesAMessageThatCouldNotBeSent) {
  ResultLog log;
  for (uint32_t i = 0; i < kMaxResultRecords + 3; ++i) log.Add(Record(i));
  log.PutBack(log.Take());
  const session::ResultRecords first = log.Take();
  for (uint32_t i = 0; i < kMaxResultRecords; ++i) {
    EXPECT_EQ(first.records[i].slot, i);
  }
  EXPECT_EQ(log.Take().records[2].slot, kMaxResultRecords + 2);
}

TEST(ResultLogTest, BeyondTheLimitRecordsAreCountedAndDropped) {
  ResultLog log;
  const auto most = static_cast<uint32_t>(kMaxKeptResultRecords);
  for (uint32_t i = 0; i < most + 7; ++i) log.Add(Record(i));
  uint32_t kept = 0, dropped = 0;
  while (!log.empty()) {
    const session::ResultRecords message = log.Take();
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
