#include "client/engine/rank_join.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "client/testing/rank_core_testing.h"

namespace maypole {
namespace {

// Rank 0 of two; rank 1 submits by writing its arrival to the board.
class RankJoinTest : public testing::Test {
 protected:
  RankJoinTest() {
    BoardConfig config;
    config.size = config.local_size = 2;
    config.slots = 64;
    config.chunk_bytes = 4096;
    config.global_rank[1] = 1;
    EXPECT_TRUE(Board::Create(config, &board_).ok());
    requests_ = std::make_unique<ExecutorRequests>(&shell_);
    names_ = std::make_unique<RankNames>(board_.get(), 0, requests_.get());
    sets_ = std::make_unique<ProcessSetTable>(board_.get(), requests_.get());
    join_ = std::make_unique<RankJoin>(
        board_.get(), 0, &shell_, requests_.get(), names_.get(), sets_.get());
    operation_->control = Control::kJoin;
    operation_->name = "join";
  }
  void Begin() {
    join_->Begin(operation_);
    shell_.sent.clear();
  }
  void Reply(uint32_t number, const std::string& error = "") {
    auto reply = session::Make<session::JoinReply>();
    reply.number = number;
    reply.last_rank = 1;
    if (!error.empty()) {
      reply.code = static_cast<uint32_t>(Code::kAborted);
      session::SetText(reply.text, error);
    }
    join_->OnReply(reply);
  }
  // The executor wants an operation that ranks of other nodes have submitted.
  void Want(uint32_t slot, const std::string& name, Op op) {
    board_->Allot(slot, 0, Kind::kAllreduce, name, 0b11, slot + 1, 0);
    Signature s;
    s.kind = Kind::kAllreduce;
    s.op = op;
    s.dtype = DType::kInt32;
    s.dims = 1;
    s.shape[0] = 4;
    board_->Want(slot, 1, s);
  }
  void Allot(uint32_t request, uint32_t slot) {
    auto reply = session::Make<session::SlotReply>();
    reply.slot = slot;
    EXPECT_TRUE(names_->Allot(*names_->TakeRequested(request), reply).ok());
  }

  Shell shell_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<ExecutorRequests> requests_;
  std::unique_ptr<RankNames> names_;
  std::unique_ptr<ProcessSetTable> sets_;
  std::unique_ptr<RankJoin> join_;
  const std::shared_ptr<Operation> operation_ = std::make_shared<Operation>();
};

TEST_F(RankJoinTest, IsOnTheBoardUntilItEnds) {
  EXPECT_FALSE(join_->joining());
  join_->Begin(operation_);
  EXPECT_TRUE(join_->joining());
  EXPECT_EQ(board_->rank(0).aside.load(), 1u);
  EXPECT_EQ(board_->header().aside_count.load(), 1u);
  EXPECT_TRUE(requests_->any());
  Reply(2);
  EXPECT_FALSE(join_->answered()) << "of another join";
  Reply(1);
  ASSERT_TRUE(join_->answered() && join_->may_end());
  const auto [op, status] = join_->End();
  EXPECT_EQ(op, operation_);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(op->answer, 1);
  EXPECT_EQ(join_->joins(), 1u);
  EXPECT_FALSE(join_->joining());
  EXPECT_EQ(board_->rank(0).aside.load(), 0u);
  EXPECT_EQ(board_->header().aside_count.load(), 0u);
  EXPECT_FALSE(requests_->any());
}

TEST_F(RankJoinTest, StandsInWithAnInputThatChangesNoResult) {
  Begin();
  EXPECT_EQ(join_->StandIn(2), nullptr) << "nobody has submitted anything";
  Want(2, "x", Op::kMin);
  EXPECT_EQ(join_->StandIn(2), nullptr) << "it has no slot yet";
  EXPECT_EQ(shell_.sent.size(), 1u) << "it has requested it";
  EXPECT_EQ(join_->StandIn(2), nullptr);
  EXPECT_EQ(shell_.sent.size(), 1u) << "once";
  Allot(1, 2);
  const std::shared_ptr<Operation> op = join_->StandIn(2);
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(op->name, "x");
  EXPECT_TRUE(op->stands_in);
  EXPECT_EQ(op->signature.aside, 1);
  const auto* input = reinterpret_cast<const int32_t*>(op->input);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(input[i], INT32_MAX);
  EXPECT_EQ(op->output, nullptr);
  names_->At(2)->current = op;
  EXPECT_EQ(join_->StandIn(2), nullptr) << "one at a time";
  // The join ends after it, unless it has failed.
  Reply(1);
  EXPECT_FALSE(join_->may_end());
  join_->OnStandInEnded();
  EXPECT_TRUE(join_->may_end());
}

TEST_F(RankJoinTest, AJoinThatFailedNeedNotWait) {
  Begin();
  Want(2, "x", Op::kSum);
  join_->StandIn(2);
  Allot(1, 2);
  ASSERT_NE(join_->StandIn(2), nullptr);
  Reply(1, "a rank has left");
  EXPECT_TRUE(join_->may_end());
  EXPECT_EQ(join_->End().second.message(), "join: a rank has left");
}

TEST_F(RankJoinTest, ReportsOnceThatNothingOfItsOwnIsPending) {
  Begin();
  join_->ReportIdle(/*outstanding=*/2);  // the join, and an operation
  EXPECT_TRUE(shell_.sent.empty());
  join_->ReportIdle(1);
  join_->ReportIdle(1);
  ASSERT_EQ(shell_.sent.size(), 1u);
  session::JoinRequest request;
  ASSERT_TRUE(
      session::Parse(shell_.sent[0].data(), shell_.sent[0].size(), &request)
          .ok());
  EXPECT_EQ(request.settled, 1u);
  EXPECT_EQ(request.number, 1u);
}

TEST_F(RankJoinTest, TheEpochsEndEndsIt) {
  Begin();
  const auto [op, status] =
      join_->Fail(Status(Code::kAborted, "the job is over"));
  EXPECT_EQ(op, operation_);
  EXPECT_EQ(status.message(), "join: the job is over");
  EXPECT_EQ(board_->header().aside_count.load(), 0u);
}

}  // namespace
}  // namespace maypole
