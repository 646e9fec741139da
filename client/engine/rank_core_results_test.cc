// The checksums of results that ranks send.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/testing/rank_core_testing.h"
#include "common/checksum/checksum.h"

namespace maypole {
namespace {

using Values = std::vector<int32_t>;
using Records = std::vector<session::ResultRecord>;

uint32_t ChecksumOf(const Values& values) {
  return Checksum(values.data(), values.size() * 4);
}

class RankCoreResultsTest : public testing::Test {
 protected:
  void Enable(World& w, uint32_t ranks) {
    for (uint32_t r = 0; r < ranks; ++r) w.cores[r]->EnableChecksums();
  }
  // What the rank has sent since the last call.
  static Records Sent(World& w, uint32_t rank) {
    w.cores[rank]->SendAllResults();
    Records out;
    std::erase_if(w.shells[rank]->sent, [&](const std::vector<char>& m) {
      session::ResultRecords records;
      if (!session::Parse(m.data(), m.size(), &records).ok()) return false;
      out.insert(out.end(), records.records, records.records + records.count);
      return true;
    });
    return out;
  }
  // All ranks run it, each with its rank as the value; the executor reads no
  // results.
  static std::vector<Tensor> Run(World& w, uint32_t ranks, Kind kind,
                                 const std::string& name, size_t n) {
    std::vector<Tensor> tensors;
    for (uint32_t r = 0; r < ranks; ++r) {
      tensors.push_back(
          Make(kind, name, Values(n, static_cast<int32_t>(r) + 1)));
    }
    for (uint32_t r = 0; r < ranks; ++r) {
      if (kind == Kind::kBroadcast) tensors[r].op->signature.root = 0;
      EXPECT_TRUE(w.Submit(r, tensors[r]).ok());
    }
    w.Settle();
    for (const Tensor& t : tensors) EXPECT_TRUE(t.op->done.load());
    return tensors;
  }
};

TEST_F(RankCoreResultsTest, NothingIsSentUnlessItIsEnabled) {
  World w(2);
  Run(w, 2, Kind::kAllreduce, "x", 4);
  EXPECT_TRUE(Sent(w, 0).empty());
}

// Eager: the last rank to arrive ends it in Start(). Larger: by rendezvous.
TEST_F(RankCoreResultsTest, AllRanksSendTheChecksumOfTheSameResult) {
  for (const size_t n : {4, 5000}) {
    World w(3);
    Enable(w, 3);
    Run(w, 3, Kind::kAllreduce, "x", n);
    const uint32_t sum = ChecksumOf(Values(n, 6));
    for (uint32_t r = 0; r < 3; ++r) {
      const Records sent = Sent(w, r);
      ASSERT_EQ(sent.size(), 1u) << "rank " << r << ", " << n << " values";
      EXPECT_EQ(sent[0].generation, 1u);
      EXPECT_EQ(sent[0].bytes, n * 4);
      EXPECT_EQ(sent[0].checksum, sum);
    }
  }
}

TEST_F(RankCoreResultsTest, OnlyKindsWithEqualResultsAreSent) {
  World w(2);
  Enable(w, 2);
  Run(w, 2, Kind::kAllgather, "g", 3);
  const Records gathered = Sent(w, 1);
  ASSERT_EQ(gathered.size(), 1u);
  EXPECT_EQ(gathered[0].bytes, 24u);
  EXPECT_EQ(gathered[0].checksum, ChecksumOf({1, 1, 1, 2, 2, 2}));
  Run(w, 2, Kind::kBroadcast, "b", 3);
  EXPECT_EQ(Sent(w, 1).at(0).checksum, ChecksumOf({1, 1, 1}));
  Run(w, 2, Kind::kReducescatter, "r", 4);
  Run(w, 2, Kind::kBarrier, "", 0);
  EXPECT_TRUE(Sent(w, 0).size() == 2u && Sent(w, 1).empty());
}

TEST_F(RankCoreResultsTest, TheUsesOfANameAreNumbered) {
  World w(2);
  Enable(w, 2);
  for (int i = 0; i < 3; ++i) Run(w, 2, Kind::kAllreduce, "x", 2);
  const Records sent = Sent(w, 0);
  ASSERT_EQ(sent.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(sent[i].generation, i + 1);
}

TEST_F(RankCoreResultsTest, AnOperationThatFailedHasNoResult) {
  World w(2);
  Enable(w, 2);
  Tensor a = Make(Kind::kAllreduce, "x", {1, 2});
  Tensor b = Make(Kind::kAllreduce, "x", {1, 2, 3});  // a mismatch
  ASSERT_TRUE(w.Submit(0, a).ok() && w.Submit(1, b).ok());
  w.Settle();
  EXPECT_FALSE(a.op->status.ok());
  for (uint32_t r = 0; r < 2; ++r) {
    const Records sent = Sent(w, r);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].bytes, session::ResultRecord::kNoResult);
  }
}

TEST_F(RankCoreResultsTest, ARankThatStandsInHasNoResult) {
  World w(2);
  Enable(w, 2);
  w.Join(1);
  Tensor a = Make(Kind::kAllreduce, "x", {5});
  ASSERT_TRUE(w.Submit(0, a).ok());
  w.Settle();
  ASSERT_TRUE(a.op->done.load());
  EXPECT_EQ(Sent(w, 0).at(0).checksum, ChecksumOf({5}));
  EXPECT_EQ(Sent(w, 1).at(0).bytes, session::ResultRecord::kNoResult);
}

TEST_F(RankCoreResultsTest, RecordsLeaveBeforeTheSlotIsGivenBack) {
  World w(1);
  Enable(w, 1);
  Run(w, 1, Kind::kAllreduce, "x", 1);
  w.shells[0]->no_room = true;  // then they wait in order
  auto recall = session::Make<session::SlotRecall>();
  recall.count = 1;
  const char* bytes = reinterpret_cast<const char*>(&recall);
  w.cores[0]->OnMessage({bytes, bytes + sizeof(recall)});
  ASSERT_EQ(w.shells[0]->sent.size(), 2u);
  EXPECT_EQ(session::TypeOf(w.shells[0]->sent[0].data()),
            session::Type::kResultRecords);
  EXPECT_EQ(session::TypeOf(w.shells[0]->sent[1].data()),
            session::Type::kSlotReturn);
}

TEST_F(RankCoreResultsTest, WithoutRoomTheyWait) {
  World w(1);
  Enable(w, 1);
  w.shells[0]->no_room = true;
  for (uint32_t i = 0; i < kMaxResultRecords + 1; ++i) {
    Run(w, 1, Kind::kAllreduce, "x", 1);
  }
  EXPECT_TRUE(w.shells[0]->sent.empty());
  w.shells[0]->no_room = false;
  w.shells[0]->now += 2 * kResultPauseNs;
  w.cores[0]->Step();
  EXPECT_EQ(w.shells[0]->sent.size(), 1u) << "the full message";
  w.shells[0]->now += 2 * kResultPauseNs;
  w.cores[0]->Step();
  w.shells[0]->now += 2 * kResultPauseNs;
  w.cores[0]->Step();
  const Records sent = Sent(w, 0);
  ASSERT_EQ(sent.size(), kMaxResultRecords + 1);
  for (uint32_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(sent[i].generation, i + 1);
  }
}

}  // namespace
}  // namespace maypole
