#include "worker/session/board_keeper.h"

#include <gtest/gtest.h>

#include "common/urgent.h"

namespace maypole::worker {
namespace {

class BoardKeeperTest : public testing::Test {
 protected:
  void SetUp() override {
    BoardConfig config;
    config.size = 2;
    config.local_size = 2;
    config.slots = 64;
    config.runs = 2;
    config.chunk_bytes = 4096;
    config.ring_depth = 2;
    std::unique_ptr<Board> board;
    const Status s = Board::Create(config, &board);
    ASSERT_TRUE(s.ok()) << s.message();
    keeper_ = std::make_unique<BoardKeeper>(std::move(board));
    for (uint32_t i = 0; i < 3; ++i) keeper_->Allot(i, 100 + i);
    signature_.kind = Kind::kAllreduce;
    signature_.dtype = DType::kFloat32;
    signature_.dims = 1;
    signature_.shape[0] = 10;
  }

  const Board& board() { return keeper_->board(); }
  void Arrive(uint32_t slot, uint32_t rank, uint32_t generation) {
    board().Arrive(slot, rank, generation, signature_);
  }
  void SetNews(uint32_t slot) {
    board().news(slot / 64).fetch_or(uint64_t{1} << (slot % 64));
  }

  std::unique_ptr<BoardKeeper> keeper_;
  Signature signature_;
};

TEST_F(BoardKeeperTest, NewsAreCopiedOnce) {
  Arrive(1, 0, 1);
  Arrive(1, 1, 1);
  SetNews(1);
  const auto news = keeper_->TakeNews();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].slot, 1u);
  EXPECT_EQ(news[0].generation, 1u);
  EXPECT_EQ(news[0].signatures.at(1).shape[0], 10);
  EXPECT_TRUE(keeper_->TakeNews().empty());
}

TEST_F(BoardKeeperTest, NewsStandBySlotAndTellWhoIsWaitedFor) {
  for (const uint32_t slot : {2u, 0u}) {
    Arrive(slot, 0, 1);
    Arrive(slot, 1, 1);
    SetNews(slot);
  }
  EXPECT_TRUE(RaiseUrgency(board(), 2, 1, Urgency::kAwaited));
  EXPECT_FALSE(RaiseUrgency(board(), 2, 1, Urgency::kAwaited));
  const auto news = keeper_->TakeNews();
  ASSERT_EQ(news.size(), 2u);
  EXPECT_EQ(news[0].slot, 0u);
  EXPECT_EQ(news[0].urgency, Urgency::kNone);
  EXPECT_EQ(news[1].urgency, Urgency::kAwaited);
  // It is of that generation only, and nonsense is no more than urgent.
  Arrive(2, 0, 2);
  Arrive(2, 1, 2);
  SetNews(2);
  EXPECT_EQ(keeper_->TakeNews().at(0).urgency, Urgency::kNone);
  board().slot(2).urgency.store(Tagged(2, 77));
  SetNews(2);
  EXPECT_EQ(keeper_->TakeNews().at(0).urgency, Urgency::kImmediate);
}

TEST_F(BoardKeeperTest, NewsThatAreNotTrueAreDropped) {
  SetNews(0);   // nobody has arrived
  SetNews(2);   // one has
  SetNews(63);  // no such slot
  Arrive(2, 1, 1);
  EXPECT_TRUE(keeper_->TakeNews().empty());
}

TEST_F(BoardKeeperTest, WaitersForARankThatHasLeftFail) {
  Arrive(0, 0, 1);  // waits for rank 1
  Arrive(1, 0, 1);
  Arrive(1, 1, 1);  // complete
  keeper_->MarkLeft(1, "rank 1 has shut down");
  EXPECT_EQ(board().OutcomeOf(0, 1), Outcome::kFailed);
  EXPECT_EQ(board().ErrorOf(0, 1).message(), "rank 1 has shut down");
  EXPECT_EQ(board().OutcomeOf(1, 1), Outcome::kRunning);
  EXPECT_EQ(board().OutcomeOf(2, 0), Outcome::kRunning);
  EXPECT_EQ(board().header().left_count.load(), 1u);
  EXPECT_STREQ(board().header().left_text, "rank 1 has shut down");
  // An arrival that crossed the departure.
  Arrive(2, 0, 1);
  keeper_->FailWaiting();
  EXPECT_EQ(board().OutcomeOf(2, 1), Outcome::kFailed);
}

TEST_F(BoardKeeperTest, RemoteDepartureFailsWhatIsNotCompleteHere) {
  Arrive(0, 1, 1);
  Arrive(1, 0, 1);
  Arrive(1, 1, 1);  // the coordinator knows of it and fails it if it must
  keeper_->MarkLeft(-1, "rank 5 has shut down");
  EXPECT_EQ(board().OutcomeOf(0, 1), Outcome::kFailed);
  EXPECT_EQ(board().OutcomeOf(1, 1), Outcome::kRunning);
}

TEST_F(BoardKeeperTest, PlansAreIssuedInOrder) {
  RunSpec run;
  run.record = 1;
  run.generation = 1;
  run.bytes = 68;
  run.operations = {{2, 5, 0}, {0, 3, 64}};
  run.first_dims = {7, 8};
  for (const uint32_t record : {1u, 0u, 1u}) {
    run.record = record;
    keeper_->WritePlan(run);
    keeper_->Issue(run);
  }
  EXPECT_EQ(board().plan(1).operations, 2u);
  EXPECT_EQ(board().plan(1).bytes, 68u);
  EXPECT_EQ(board().plan_operations(1)[1].slot, 0u);
  EXPECT_EQ(board().plan_first_dims(1)[1], 8);
  Ticket ticket;
  for (auto [position, record] :
       std::vector<std::pair<uint64_t, uint32_t>>{{0, 1}, {1, 0}, {2, 1}}) {
    ASSERT_TRUE(board().ReadTicket(&position, &ticket));
    EXPECT_EQ(ticket.ref, board().NegotiatedRef(record));
  }
  uint64_t next = 3;
  EXPECT_FALSE(board().ReadTicket(&next, &ticket));
}

TEST_F(BoardKeeperTest, CountsWhatRanksDoAmongThemselves) {
  auto stats = SharedStats::Create();
  ASSERT_TRUE(stats.ok()) << stats.status();
  Arrive(0, 0, 3);
  keeper_->CountLocalOperations(&**stats);
  keeper_->CountLocalOperations(&**stats);
  Arrive(0, 0, 4);
  keeper_->CountLocalOperations(&**stats);
  EXPECT_EQ((*stats)->operations[0].load(), 4u);
  EXPECT_EQ((*stats)->operation_bytes[0].load(), 160u);
}

TEST(SharedStatsTest, PageIsSharedAndBad) {
  auto page = SharedStats::Create();
  ASSERT_TRUE(page.ok());
  auto other = SharedStats::Attach(Fd(dup(page->fd())));
  ASSERT_TRUE(other.ok());
  (*page)->ObserveRun(150000);
  EXPECT_EQ((*other)->run_seconds[2].load(), 1u);
  EXPECT_FALSE(SharedStats::Attach(Fd()).ok());
}

}  // namespace
}  // namespace maypole::worker
