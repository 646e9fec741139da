// What a snapshot of the board says about its ranks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/executor/board/board_keeper.h"
#include "worker/executor/board/process_state.h"

namespace maypole::worker {
namespace {

// Ranks 0 and 1 of three; rank 2 is on the other node. Slots: 0 of all ranks, 1
// of ranks 0 and 1, 2 of ranks 1 and 2.
class BoardSnapshotTest : public testing::Test {
 protected:
  void SetUp() override {
    BoardConfig config;
    config.size = 3;
    config.local_size = 2;
    config.nodes = 2;
    config.global_rank[1] = 1;
    config.slots = 64;
    config.runs = 2;
    config.chunk_bytes = 4096;
    config.ring_depth = 2;
    std::unique_ptr<Board> board;
    const Status s = Board::Create(config, &board);
    ASSERT_TRUE(s.ok()) << s.message();
    keeper_ = std::make_unique<BoardKeeper>(std::move(board));
    ASSERT_TRUE(sets_.Add(1, {0, 1}).ok());
    ASSERT_TRUE(sets_.Add(2, {1, 2}).ok());
    for (uint32_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(
          keeper_->Allot({i, Kind::kAllreduce, "x", sets_.Find(i), 0}).ok());
    }
    for (uint32_t i = 0; i < 2; ++i) keeper_->MarkPresent(i, 0);
  }

  const Board& board() { return keeper_->board(); }
  void Arrive(uint32_t slot, uint32_t rank, uint32_t generation) {
    board().Arrive(slot, rank, generation, Signature{});
    board().rank(rank).tickets_read = 1;
  }
  void Consume(RunRef ref, uint32_t rank, uint32_t generation,
               uint32_t chunks = UINT32_MAX) {
    board().progress(ref, rank).consumed = Tagged(generation, chunks);
  }
  void Block(uint32_t rank, uint64_t on) {
    board().rank(rank).blocked_on = on;
    ++board().rank(rank).blocked_count;
  }

  SetTable sets_{{0, 0, 1}, {0, 1}};
  std::unique_ptr<BoardKeeper> keeper_;
};

TEST_F(BoardSnapshotTest, WhoHasArrivedAndWhoHasNot) {
  EXPECT_TRUE(keeper_->TakeSnapshot(0).waiting.empty());
  Arrive(0, 1, 1);
  Arrive(1, 0, 3);
  Arrive(1, 1, 2);
  Arrive(2, 1, 1);  // all that this node has of it
  const BoardSnapshot snapshot = keeper_->TakeSnapshot(0);
  ASSERT_EQ(snapshot.waiting.size(), 2u);
  EXPECT_EQ(snapshot.waiting[0].slot, 0u);
  EXPECT_EQ(snapshot.waiting[0].generation, 1u);
  EXPECT_EQ(snapshot.waiting[0].arrived, 2u);
  EXPECT_EQ(snapshot.waiting[0].missing, 1u);
  EXPECT_EQ(snapshot.waiting[1].generation, 3u);
  EXPECT_EQ(snapshot.waiting[1].missing, 2u);
  // A failed operation waits for no rank.
  board().Fail(1, 3, Code::kAborted, "gone");
  EXPECT_EQ(keeper_->TakeSnapshot(0).waiting.size(), 1u);
}

TEST_F(BoardSnapshotTest, AnOperationIsHeldUntilTheRankHasLeftIt) {
  Arrive(1, 0, 1);
  EXPECT_FALSE(keeper_->TakeSnapshot(0).ranks[0].holds.has_value());
  Arrive(1, 1, 1);
  BoardSnapshot snapshot = keeper_->TakeSnapshot(0);
  EXPECT_EQ(snapshot.ranks[0].holds, 1u);
  EXPECT_EQ(snapshot.ranks[1].holds, 1u);
  Consume(1, 0, 1);
  Consume(1, 1, 1, 5);
  const uint64_t beat = snapshot.ranks[1].beat;
  snapshot = keeper_->TakeSnapshot(0);
  EXPECT_FALSE(snapshot.ranks[0].holds.has_value());
  EXPECT_EQ(snapshot.ranks[1].holds, 1u);
  EXPECT_NE(snapshot.ranks[1].beat, beat);  // it moves
  EXPECT_EQ(snapshot.ranks[1].beat, keeper_->TakeSnapshot(0).ranks[1].beat);
  ++board().rank(1).heartbeat;
  EXPECT_NE(snapshot.ranks[1].beat, keeper_->TakeSnapshot(0).ranks[1].beat);
  // It says that it has nothing outstanding: then it holds nothing.
  board().rank(1).tickets_read = kAllRead;
  EXPECT_FALSE(keeper_->TakeSnapshot(0).ranks[1].holds.has_value());
}

TEST_F(BoardSnapshotTest, ARunIsHeldFromItsTicketOn) {
  Arrive(0, 0, 1);
  Arrive(0, 1, 1);
  EXPECT_FALSE(
      keeper_->TakeSnapshot(0).ranks[0].holds.has_value());  // not ordered yet
  RunSpec run;
  run.record = 1;
  run.generation = 4;
  run.operations = {{0, 1, 0}};
  run.members = 3;
  keeper_->WritePlan(run);
  keeper_->Issue(run);
  EXPECT_EQ(keeper_->TakeSnapshot(0).ranks[0].holds, 0u);
  Consume(board().NegotiatedRef(1), 0, 4);
  EXPECT_FALSE(keeper_->TakeSnapshot(0).ranks[0].holds.has_value());
  EXPECT_EQ(keeper_->TakeSnapshot(0).ranks[1].holds, 0u);
  keeper_->MarkGone(1);
  EXPECT_FALSE(keeper_->TakeSnapshot(0).ranks[1].holds.has_value());
}

TEST_F(BoardSnapshotTest, TicketsWaitForWhoHasNotReadOlderOnes) {
  board().rank(1).tickets_read = 1;
  RunSpec run;
  run.operations = {{0, 1, 0}};
  run.members = 3;
  for (uint32_t i = 1; i <= kTicketCells / 2 + 2000; ++i) {
    run.generation = i;
    keeper_->Issue(run);
  }
  EXPECT_FALSE(board().aborted());
  EXPECT_TRUE(keeper_->PlaceHeldTickets());
  board().rank(1).tickets_read = 3000;
  EXPECT_FALSE(keeper_->PlaceHeldTickets());
  // None is lost, and they stand in order.
  for (uint32_t i = 1; i <= kTicketCells / 2 + 2000; ++i) {
    uint64_t position = i - 1;
    Ticket ticket;
    ASSERT_TRUE(board().ReadTicket(&position, &ticket));
    ASSERT_EQ(position, i - 1);
    ASSERT_TRUE(ticket.Is(i));
  }
}

TEST_F(BoardSnapshotTest, WhatABlockedRankWaitsForIsSeenOnTheBoard) {
  Arrive(1, 0, 2);
  Arrive(1, 1, 1);
  Block(0, Tagged(2, 1));
  EXPECT_FALSE(keeper_->AllSayBlocked());
  BoardSnapshot snapshot = keeper_->TakeSnapshot(0);
  EXPECT_EQ(snapshot.ranks[0].blocked_count, 1u);
  EXPECT_TRUE(snapshot.ranks[0].undecided);
  EXPECT_EQ(snapshot.ranks[0].missing, 2u);
  Block(1, kBlockedInJoin);
  EXPECT_TRUE(keeper_->AllSayBlocked());
  EXPECT_FALSE(keeper_->TakeSnapshot(0).ranks[1].undecided);
  keeper_->MarkGone(1);
  EXPECT_TRUE(keeper_->AllSayBlocked());
  board().Fail(1, 2, Code::kAborted, "gone");
  EXPECT_FALSE(keeper_->TakeSnapshot(0).ranks[0].undecided);
}

TEST_F(BoardSnapshotTest, NonsenseOfABlockedRankIsNotBelieved) {
  Arrive(1, 0, 2);
  for (const uint64_t on :
       {Tagged(1, 1), Tagged(3, 1), Tagged(2, 2), Tagged(1, 63),
        Tagged(1, 4000000000u), uint64_t{0}}) {
    board().rank(0).blocked_on = on;
    board().rank(0).blocked_count = 1;
    const BoardSnapshot snapshot = keeper_->TakeSnapshot(0);
    EXPECT_FALSE(snapshot.ranks[0].undecided) << on;
  }
}

TEST_F(BoardSnapshotTest, AStoppedProcessIsSeen) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  ASSERT_GT(child, 0);
  EXPECT_FALSE(IsStopped(child));
  kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(IsStopped(child));
  keeper_->MarkPresent(1, child);
  EXPECT_EQ(keeper_->TakeSnapshot(1).stopped, 0u);  // not asked
  EXPECT_EQ(keeper_->TakeSnapshot(3).stopped, 2u);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_FALSE(IsStopped(child));
  EXPECT_FALSE(IsStopped(0));
}

}  // namespace
}  // namespace maypole::worker
