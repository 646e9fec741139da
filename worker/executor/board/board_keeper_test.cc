#include "worker/executor/board/board_keeper.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "common/board/gpu_place.h"
#include "common/board/urgent.h"

namespace maypole::worker {
namespace {

class BoardKeeperTest : public testing::Test {
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
    for (uint32_t i = 0; i < 3; ++i) Allot(i, sets_.all());
    signature_.kind = Kind::kAllreduce;
    signature_.dtype = DType::kFloat32;
    signature_.dims = 1;
    signature_.shape[0] = 10;
  }

  void Allot(uint32_t slot, SharedSet set, Kind kind = Kind::kAllreduce,
             uint32_t splits = 0) {
    const AllotSlot allot{slot, kind, "x" + std::to_string(slot), set, splits};
    ASSERT_TRUE(keeper_->Allot(allot).ok());
  }
  const Board& board() { return keeper_->board(); }
  void Arrive(uint32_t slot, uint32_t rank, uint32_t generation) {
    board().Arrive(slot, rank, generation, signature_);
  }
  void MarkReady(uint32_t slot) {
    board().ready_bits(slot / 64).fetch_or(uint64_t{1} << (slot % 64));
  }

  SharedSet MakeSet(uint32_t id, const std::vector<int>& ranks) {
    EXPECT_TRUE(sets_.Add(id, ranks).ok());
    return sets_.Find(id);
  }

  SetTable sets_{{0, 0, 1}, {0, 1}};  // rank 2 is on the other node
  std::unique_ptr<BoardKeeper> keeper_;
  Signature signature_;
};

TEST_F(BoardKeeperTest, NewsAreCopiedOnce) {
  Arrive(1, 0, 1);
  Arrive(1, 1, 1);
  MarkReady(1);
  const auto ready = keeper_->TakeReadySlots();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].slot, 1u);
  EXPECT_EQ(ready[0].generation, 1u);
  EXPECT_EQ(ready[0].signatures.at(1).shape[0], 10);
  EXPECT_TRUE(keeper_->TakeReadySlots().empty());
}

TEST_F(BoardKeeperTest, PlacesOnAGpuAreCopiedIfAllRanksHaveOne) {
  const GpuPlace places[] = {{1, 3, 256}, {2, 3, 512}};
  const auto arrive = [&](uint32_t rank, uint32_t generation, uint64_t place) {
    board().Arrive(1, rank, generation, signature_, kNoBuffer, /*arena=*/0,
                   place, /*gpu_room=*/100 + rank);
  };
  for (const uint32_t rank : {0, 1})
    arrive(rank, 1, PackGpuPlace(places[rank]));
  MarkReady(1);
  const ReadySlot ready = keeper_->TakeReadySlots().at(0);
  EXPECT_EQ(ready.gpu_places, (std::vector<uint64_t>{PackGpuPlace(places[0]),
                                                     PackGpuPlace(places[1])}));
  EXPECT_EQ(ready.gpu_rooms, (std::vector<uint64_t>{100, 101}));
  arrive(0, 2, PackGpuPlace(places[0]));
  arrive(1, 2, kNoGpuPlace);
  MarkReady(1);
  EXPECT_TRUE(keeper_->TakeReadySlots().at(0).gpu_places.empty());
  arrive(0, 3, PackGpuPlace(places[0]));
  arrive(1, 3, PackGpuPlace({2, 4, 512}));  // another GPU
  MarkReady(1);
  EXPECT_TRUE(keeper_->TakeReadySlots().at(0).gpu_places.empty());
}

TEST_F(BoardKeeperTest, ACommitPlacesTheTicketOfAnOperationOfThisNode) {
  for (const uint32_t rank : {0, 1}) Arrive(1, rank, 1);
  keeper_->Commit(1, 1);
  EXPECT_EQ(board().OutcomeOf(1, 1), Outcome::kCommitted);
  uint64_t position = 0;
  Ticket ticket;
  ASSERT_TRUE(board().ReadTicket(&position, &ticket));
  EXPECT_EQ(ticket.ref, 1u);
  EXPECT_TRUE(ticket.Is(1));
}

// Ranks 0 and 1 have copied 1, 2, .. and 10, 20, ..
TEST_F(BoardKeeperTest, SmallOperationsAreReducedOverTheNodes) {
  for (uint32_t rank = 0; rank < 2; ++rank) {
    auto* to = reinterpret_cast<float*>(board().pool(rank, 3 + rank));
    for (int i = 0; i < 10; ++i) to[i] = (rank == 0 ? 1.f : 10.f) * (i + 1);
    board().Arrive(1, rank, 1, signature_, static_cast<int>(3 + rank));
  }
  MarkReady(1);
  const auto ready = keeper_->TakeReadySlots();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_TRUE(ready[0].copied);
  SmallOperation op{
      1, 1, signature_, {.over_nodes = {.divisor = 2, .scale = 1.0}}};
  const std::string own = keeper_->ReducedCopies({op});
  ASSERT_EQ(own.size(), 40u);
  float sums[10];
  std::memcpy(sums, own.data(), sizeof(sums));
  EXPECT_EQ(sums[9], 110.f);
  std::vector<float> theirs(10, 1000.f);
  const std::string inputs(reinterpret_cast<const char*>(theirs.data()), 40);
  keeper_->Finish({.operations = {op}, .inputs = {inputs, ""}, .self = 1});
  EagerResult result;
  ASSERT_TRUE(board().ResultOf(1, 1, &result));
  const auto* got =
      reinterpret_cast<const float*>(board().pool(result.local, result.buffer));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(got[i], (1000.f + 11 * (i + 1)) / 2);
  uint64_t position = 0;
  Ticket ticket;
  ASSERT_TRUE(board().ReadTicket(&position, &ticket));
  EXPECT_EQ(ticket.ref, 1u);
}

TEST_F(BoardKeeperTest, WithoutACopyThereAreNoInputs) {
  board().Arrive(1, 0, 1, signature_, 3);
  board().Arrive(1, 1, 1, signature_, kNoBuffer);
  MarkReady(1);
  EXPECT_FALSE(keeper_->TakeReadySlots().at(0).copied);
  EXPECT_EQ(keeper_->ReducedCopies({{1, 1, signature_, {}}}), "");
}

TEST_F(BoardKeeperTest, AfterAnAbortNothingSmallIsCommitted) {
  for (uint32_t rank = 0; rank < 2; ++rank) {
    board().Arrive(1, rank, 1, signature_, 0);
  }
  board().Decide(1, 1, Outcome::kAborted);
  keeper_->Finish({.operations = {{1, 1, signature_, {}}},
                   .inputs = {"", std::string(40, '\0')}});
  EXPECT_EQ(board().OutcomeOf(1, 1), Outcome::kAborted);
}

TEST_F(BoardKeeperTest, ATicketForTheHostCommitsNothing) {
  for (const uint32_t rank : {0, 1}) Arrive(1, rank, 1);
  keeper_->Issue(1, 1);
  EXPECT_EQ(board().OutcomeOf(1, 1), Outcome::kRunning);
  uint64_t position = 0;
  Ticket ticket;
  ASSERT_TRUE(board().ReadTicket(&position, &ticket));
  EXPECT_EQ(ticket.ref, 1u);
  EXPECT_TRUE(ticket.Is(1));
}

TEST_F(BoardKeeperTest, AfterAnAbortThereIsNoTicketForTheHost) {
  for (const uint32_t rank : {0, 1}) Arrive(1, rank, 1);
  board().Abort(Code::kAborted, "over");
  keeper_->Issue(1, 1);
  uint64_t position = 0;
  Ticket ticket;
  EXPECT_FALSE(board().ReadTicket(&position, &ticket));
}

TEST_F(BoardKeeperTest, AfterAnAbortThereIsNoCommit) {
  for (const uint32_t rank : {0, 1}) Arrive(1, rank, 1);
  board().Decide(1, 1, Outcome::kAborted);
  keeper_->Commit(1, 1);
  EXPECT_EQ(board().OutcomeOf(1, 1), Outcome::kAborted);
  uint64_t position = 0;
  Ticket ticket;
  EXPECT_FALSE(board().ReadTicket(&position, &ticket));
}

TEST_F(BoardKeeperTest, NewsThatAreSetAgainAndAgainAreOneEach) {
  for (uint32_t slot : {0, 2}) {
    for (uint32_t rank : {0, 1}) Arrive(slot, rank, 1);
  }
  std::atomic<bool> over{false};
  std::thread hostile([&] {
    while (!over) {
      MarkReady(2);
      MarkReady(0);
    }
  });
  size_t seen = 0;
  while (seen < 5000) {
    const auto ready = keeper_->TakeReadySlots();
    seen += ready.size();
    for (size_t j = 1; j < ready.size(); ++j) {
      EXPECT_LT(ready[j - 1].slot, ready[j].slot);
    }
  }
  over = true;
  hostile.join();
}

TEST_F(BoardKeeperTest, NewsStandBySlotAndTellWhoIsWaitedFor) {
  for (const uint32_t slot : {2u, 0u}) {
    Arrive(slot, 0, 1);
    Arrive(slot, 1, 1);
    MarkReady(slot);
  }
  EXPECT_TRUE(RaiseUrgency(board(), 2, 1, Urgency::kAwaited));
  EXPECT_FALSE(RaiseUrgency(board(), 2, 1, Urgency::kAwaited));
  const auto ready = keeper_->TakeReadySlots();
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_EQ(ready[0].slot, 0u);
  EXPECT_EQ(ready[0].urgency, Urgency::kNone);
  EXPECT_EQ(ready[1].urgency, Urgency::kAwaited);
  // An urgency counts for its generation only; an invalid one is capped.
  Arrive(2, 0, 2);
  Arrive(2, 1, 2);
  MarkReady(2);
  EXPECT_EQ(keeper_->TakeReadySlots().at(0).urgency, Urgency::kNone);
  board().slot(2).urgency.store(Tagged(2, 77));
  MarkReady(2);
  EXPECT_EQ(keeper_->TakeReadySlots().at(0).urgency, Urgency::kImmediate);
}

TEST_F(BoardKeeperTest, NewsThatAreNotTrueAreDropped) {
  MarkReady(0);   // nobody has arrived
  MarkReady(2);   // one has
  MarkReady(63);  // no such slot
  Arrive(2, 1, 1);
  EXPECT_TRUE(keeper_->TakeReadySlots().empty());
}

TEST_F(BoardKeeperTest, WaitersForARankThatHasLeftFail) {
  Arrive(0, 0, 1);  // waits for rank 1
  Arrive(1, 0, 1);
  Arrive(1, 1, 1);  // complete
  keeper_->MarkLeft({1, 1, "rank 1 has shut down"});
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

TEST_F(BoardKeeperTest, NamesThatOneRankHasArrivedAtAreIdleAfterADeparture) {
  Allot(3, MakeSet(1, {0, 1}));
  Arrive(0, 0, 1);
  Arrive(1, 0, 2);
  Arrive(1, 1, 2);
  Arrive(3, 0, 1);
  const auto idle = [&] {
    std::vector<std::pair<uint32_t, uint32_t>> all;
    for (const IdleSlot& i : keeper_->IdleSlots()) {
      all.emplace_back(i.slot, i.generation);
    }
    return all;
  };
  EXPECT_THAT(idle(),
              testing::ElementsAre(testing::Pair(1, 2), testing::Pair(2, 0)));
  keeper_->MarkLeft({2, -1, "rank 2 has shut down"});
  // Not slot 3, whose process set does not need rank 2.
  EXPECT_THAT(idle(),
              testing::ElementsAre(testing::Pair(0, 1), testing::Pair(1, 2),
                                   testing::Pair(2, 0)));
}

TEST_F(BoardKeeperTest, RemoteDepartureFailsWhatIsNotCompleteHere) {
  Allot(3, MakeSet(1, {0, 1}));
  Arrive(0, 1, 1);
  Arrive(1, 0, 1);
  Arrive(1, 1, 1);  // the coordinator knows of it and fails it if it must
  Arrive(3, 1, 1);  // does not need the other node
  keeper_->MarkLeft({2, -1, "rank 2 has shut down"});
  EXPECT_EQ(board().OutcomeOf(0, 1), Outcome::kFailed);
  EXPECT_EQ(board().OutcomeOf(1, 1), Outcome::kRunning);
  EXPECT_EQ(board().OutcomeOf(3, 1), Outcome::kRunning);
}

TEST_F(BoardKeeperTest, AFailureNamesTheRankThatIsNeeded) {
  Allot(3, MakeSet(1, {0, 1}));
  Allot(4, MakeSet(2, {0, 2}));
  Arrive(4, 0, 1);  // all that this node has of it
  Arrive(3, 0, 1);
  keeper_->MarkLeft({2, -1, "rank 2 has shut down"});
  EXPECT_EQ(board().OutcomeOf(3, 1), Outcome::kRunning);
  keeper_->MarkLeft({1, 1, "rank 1 has shut down"});
  EXPECT_EQ(board().OutcomeOf(3, 1), Outcome::kFailed);
  EXPECT_EQ(board().ErrorOf(3, 1).message(), "rank 1 has shut down");
  EXPECT_EQ(board().OutcomeOf(4, 1), Outcome::kRunning);
  EXPECT_EQ(board().header().left_count.load(), 2u);
  EXPECT_STREQ(board().header().left_text, "rank 2 has shut down");
}

TEST_F(BoardKeeperTest, NewsAreOfTheMembersOnly) {
  Allot(3, MakeSet(1, {1, 2}));
  EXPECT_EQ(board().Members(3), 2u);
  board().slot(3).members = 1;  // a rank that corrupts the board
  Arrive(3, 1, 7);
  MarkReady(3);
  const auto ready = keeper_->TakeReadySlots();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].generation, 7u);
  EXPECT_EQ(ready[0].signatures.size(), 1u);
}

TEST_F(BoardKeeperTest, SplitsAreCopiedByGeneration) {
  Allot(3, sets_.all(), Kind::kAlltoall, 1);
  EXPECT_EQ(board().slot(3).splits.load(), 1u);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (int to = 0; to < 3; ++to) {
      board().splits(0, rank, 1)[to] = 10 * rank + to;
      board().splits(0, rank, 2)[to] = 100;
    }
    Arrive(3, rank, 1);
  }
  MarkReady(3);
  const auto ready = keeper_->TakeReadySlots();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].splits, (std::vector<int64_t>{0, 1, 2, 10, 11, 12}));
}

TEST_F(BoardKeeperTest, PlansAreIssuedInOrder) {
  RunSpec run;
  run.record = 1;
  run.generation = 1;
  run.bytes = 68;
  run.operations = {{2, 5, 0}, {0, 3, 64}};
  run.first_dims = {7, 8, 9};
  run.members = 2;
  run.splits = {1, 2, 3, 4};
  run.matrix = 1;
  for (const uint32_t record : {1u, 0u, 1u}) {
    run.record = record;
    keeper_->WritePlan(run);
    keeper_->Issue(run);
  }
  EXPECT_EQ(board().plan(1).operations, 2u);
  EXPECT_EQ(board().plan(1).bytes, 68u);
  EXPECT_EQ(board().plan_operations(1)[1].slot, 0u);
  EXPECT_EQ(board().plan_first_dims(1)[1], 8);
  EXPECT_EQ(board().plan(1).matrix, 1u);
  EXPECT_EQ(board().matrix(1)[3], 4);
  Ticket ticket;
  for (auto [position, record] :
       std::vector<std::pair<uint64_t, uint32_t>>{{0, 1}, {1, 0}, {2, 1}}) {
    ASSERT_TRUE(board().ReadTicket(&position, &ticket));
    EXPECT_EQ(ticket.ref, board().NegotiatedRef(record));
    EXPECT_TRUE(board().IsMember(ticket, 1));
    EXPECT_FALSE(board().IsMember(ticket, 0));
  }
  uint64_t next = 3;
  EXPECT_FALSE(board().ReadTicket(&next, &ticket));
}

TEST_F(BoardKeeperTest, ASlotWithoutMemoryIsNotThere) {
  BoardConfig config = board().config();
  config.slots = 2 * kSlotStep;
  std::unique_ptr<Board> larger;
  ASSERT_TRUE(Board::Create(config, &larger).ok());
  keeper_ = std::make_unique<BoardKeeper>(std::move(larger));
  for (uint32_t i = 0; i < kSlotStep; ++i) Allot(i, sets_.all());
  EXPECT_EQ(keeper_->bytes(), board().bytes(kSlotStep));
  // Replaces its memory with a file in which nothing can be reserved.
  const Fd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSERT_GE(dup2(nothing.get(), board().fd()), 0);
  const Status s =
      keeper_->Allot({kSlotStep, Kind::kAllreduce, "y", sets_.all(), 0});
  EXPECT_NE(s.message().find("no shared memory"), std::string::npos)
      << s.message();
  EXPECT_NE(s.message().find("128 different operation names"),
            std::string::npos)
      << s.message();
  EXPECT_FALSE(keeper_->IsAllotted(kSlotStep));
  EXPECT_TRUE(keeper_->IsAllotted(kSlotStep - 1));
  EXPECT_EQ(keeper_->bytes(), board().bytes(kSlotStep));
}

}  // namespace
}  // namespace maypole::worker
