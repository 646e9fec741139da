// From the ranks' checksums to the message for the coordinator.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

class ResultsTest : public ExecutorCoreTest {
 protected:
  void Start(uint32_t checksums, int nodes) {
    Join(2 * nodes);
    proto::CoordinatorMessage start = StartMessage(1, nodes);
    start.mutable_epoch_start()->set_checksums(checksums);
    core_.OnCoordinator(start);
    if (nodes > 1) {
      core_.OnBackendPrepared(std::vector<std::string>{"", "a"});
      proto::CoordinatorMessage m;
      m.set_epoch(1);
      m.mutable_endpoints()->add_addresses("");
      m.mutable_endpoints()->add_addresses("b");
      core_.OnCoordinator(m);
      core_.OnBackendConnected(absl::OkStatus());
    }
    boards_ = Take<CreateBoard>();
    core_.OnBoardCreated(absl::OkStatus());
    Drop();
    core_.OnTime(1000);
  }
  void Send(ClientId client, uint32_t slot, uint32_t generation,
            uint32_t checksum) {
    auto m = session::Make<session::ResultRecords>();
    m.count = 1;
    m.records[0].slot = slot;
    m.records[0].generation = generation;
    m.records[0].bytes = 8;
    m.records[0].checksum = checksum;
    core_.OnResultRecords(client, m);
  }
  std::vector<proto::Results> Sent() {
    std::vector<proto::Results> out;
    for (const auto& m : TakeSent()) {
      if (m.has_results()) out.push_back(m.results());
    }
    return out;
  }
  std::vector<CreateBoard> boards_;
};

TEST_F(ResultsTest, TheModeGoesFromTheRanksToTheCoordinatorAndBack) {
  session::Hello hello = MakeHello(0, 2, 0, 2);
  hello.checksums = 1;
  core_.OnClient(1, hello, 1000);
  hello = MakeHello(1, 2, 1, 2);
  hello.checksums = 2;
  core_.OnClient(2, hello, 1001);
  uint32_t told = 0;
  for (const auto& m : TakeSent()) {
    if (m.has_ranks_ready()) told = m.ranks_ready().checksums();
  }
  EXPECT_EQ(told, 2u);
  proto::CoordinatorMessage start = StartMessage(1, 1);
  start.mutable_epoch_start()->set_checksums(2);
  core_.OnCoordinator(start);
  EXPECT_EQ(Take<CreateBoard>().at(0).checksums, 2u);
}

TEST_F(ResultsTest, AModeThatDoesNotExistIsRefused) {
  session::Hello hello = MakeHello(0, 2, 0, 2);
  hello.checksums = 3;
  core_.OnClient(1, hello, 1000);
  EXPECT_NE(Take<RefuseClient>().at(0).text.find("checksums in mode 3"),
            std::string::npos);
}

TEST_F(ResultsTest, ADifferenceWithinTheNodeIsReportedAtOnce) {
  Start(2, 1);
  const uint32_t slot = Slot("x").slot;
  Slot("x", Kind::kAllreduce, 0, 2);
  Send(1, slot, 1, 11);
  Send(2, slot, 1, 11);
  EXPECT_EQ(Sent().at(0).equal(), 1u);
  Send(1, slot, 2, 11);
  Send(2, slot, 2, 12);
  const auto sent = Sent();
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_EQ(sent[0].results_size(), 1);
  EXPECT_EQ(sent[0].results(0).id(), 0u);
  EXPECT_EQ(sent[0].results(0).generation(), 2u);
  EXPECT_EQ(sent[0].results(0).identity().name(), "x");
  EXPECT_EQ(sent[0].results(0).copies(1).ranks(0), 1u);
}

TEST_F(ResultsTest, WhatIsEqualIsSentAfterAPause) {
  Start(2, 1);
  const uint32_t slot = Slot("x").slot;
  for (uint32_t g = 1; g <= 3; ++g) {
    Send(1, slot, g, 11);
    Send(2, slot, g, 11);
  }
  EXPECT_EQ(Sent().at(0).equal(), 1u) << "the first, at once";
  EXPECT_TRUE(core_.waits_to_send_results());
  core_.OnTime(1000 + kResultsPauseMs - 1);
  EXPECT_TRUE(Sent().empty());
  core_.OnTime(1000 + kResultsPauseMs);
  EXPECT_EQ(Sent().at(0).equal(), 2u);
  EXPECT_FALSE(core_.waits_to_send_results());
}

// The coordinator numbers the uses of a name in its own way.
TEST_F(ResultsTest, AnOperationOfSeveralNodesIsReportedByItsIdAndCount) {
  Start(2, 2);
  const uint32_t slot = Slot("x").slot;
  core_.OnReadySlot(Ready(slot, 1, Kind::kAllreduce, 2, 2));
  proto::CoordinatorMessage m;
  AddOperation(AddRun(&m, 1), 42, "x", Kind::kAllreduce, 1);
  core_.OnCoordinator(m);
  Send(1, slot, 1, 11);
  Send(2, slot, 1, 11);
  const auto sent = Sent();
  ASSERT_TRUE(sent.size() == 1 && sent[0].results_size() == 1);
  EXPECT_EQ(sent[0].results(0).id(), 42u);
  EXPECT_EQ(sent[0].results(0).generation(), 1u);
  EXPECT_EQ(sent[0].results(0).copies_size(), 1);
  EXPECT_EQ(sent[0].results(0).copies(0).ranks_size(), 2);
}

// The operation was pending when the coordinator forgot its name.
TEST_F(ResultsTest, ANameThatTheCoordinatorForgetsKeepsItsNumbers) {
  Start(2, 2);
  const uint32_t slot = Slot("x").slot;
  core_.OnReadySlot(Ready(slot, 1, Kind::kAllreduce, 2, 2));
  proto::CoordinatorMessage m;
  AddOperation(AddRun(&m, 1), 42, "x", Kind::kAllreduce, 1);
  core_.OnCoordinator(m);
  proto::CoordinatorMessage retired;
  retired.set_epoch(1);
  retired.mutable_names_retired()->add_ids(42);
  core_.OnCoordinator(retired);
  Send(1, slot, 1, 11);
  Send(2, slot, 1, 11);
  const auto sent = Sent();
  ASSERT_TRUE(sent.size() == 1 && sent[0].results_size() == 1);
  EXPECT_EQ(sent[0].results(0).id(), 42u);
  EXPECT_EQ(sent[0].results(0).generation(), 1u);
}

TEST_F(ResultsTest, WhatARankHasSentLeavesBeforeTheNewsThatItHasLeft) {
  Start(2, 1);
  const uint32_t slot = Slot("x").slot;
  Send(1, slot, 1, 11);
  Send(2, slot, 1, 11);
  Sent();
  Send(1, slot, 2, 11);
  Send(2, slot, 2, 11);
  core_.OnGoodbye(1, 0);
  bool told = false;
  for (const auto& m : TakeSent()) {
    told = told || m.has_results();
    if (m.has_rank_gone()) {
      EXPECT_TRUE(told);
    }
  }
  EXPECT_TRUE(told);
}

TEST_F(ResultsTest, ChecksumsOfOthersOperationsEndTheEpoch) {
  Start(2, 1);
  Send(2, 5, 1, 11);
  const auto aborts = Take<AbortBoard>();
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].text,
            "rank 1 has sent the checksum of a result of slot 5, which is not "
            "one of its operations");
}

TEST_F(ResultsTest, ChecksumsThatNobodyHasAskedForEndTheEpoch) {
  Start(0, 1);
  Send(1, Slot("x").slot, 1, 11);
  EXPECT_EQ(Take<AbortBoard>().at(0).text,
            "rank 0 has sent 1 checksums; at most 0 are allowed");
}

}  // namespace
}  // namespace maypole::worker
