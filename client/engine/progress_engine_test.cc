// Progress engines of all ranks of a node over one board, in one thread,
// stepped in any order: values, outcomes, aborts.
#include "client/engine/progress_engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/testing/progress_engine_testing.h"

namespace maypole {
namespace {

TEST(ProgressEngineTest, AllreduceSumsInRankOrderAndAverages) {
  for (uint32_t k : {1u, 2u, 3u, 4u}) {
    for (size_t n : {size_t{0}, size_t{1}, size_t{17}, size_t{5000}}) {
      Node node(k);
      std::mt19937 random(k);
      std::vector<Submitted> s;
      std::vector<float> want(n, 0.f);
      for (uint32_t r = 0; r < k; ++r) {
        std::vector<float> v(n);
        for (size_t i = 0; i < n; ++i) v[i] = 0.1f * (r + 1) + i;
        for (size_t i = 0; i < n; ++i) want[i] = r == 0 ? v[i] : want[i] + v[i];
        s.push_back(Allreduce(v, Op::kAverage, r % 2 == 0));
      }
      for (size_t i = 0; i < n; ++i) want[i] /= static_cast<float>(k);
      for (uint32_t r = 0; r < k; ++r) node.Submit(r, 5, s[r]);
      node.Settle(random);
      for (uint32_t r = 0; r < k; ++r) {
        ASSERT_TRUE(s[r].op->done.load()) << k << " " << n;
        EXPECT_TRUE(s[r].op->status.ok());
        EXPECT_EQ(Values<float>(s[r].op->output, n * 4), want);
      }
    }
  }
}

TEST(ProgressEngineTest, ScaleFactorsApplyBeforeAndAfter) {
  Node node(2);
  std::mt19937 random(1);
  std::vector<Submitted> s;
  for (uint32_t r = 0; r < 2; ++r) {
    s.push_back(Allreduce({1.f, 2.f, 3.f}, Op::kSum, false));
    s[r].op->signature.prescale = 0.5;
    s[r].op->signature.postscale = 8;
  }
  for (uint32_t r = 0; r < 2; ++r) node.Submit(r, 0, s[r]);
  node.Settle(random);
  EXPECT_EQ(Values<float>(s[1].op->output, 12),
            (std::vector<float>{8, 16, 24}));
  EXPECT_EQ(Values<float>(s[1].op->input, 12), (std::vector<float>{1, 2, 3}));
}

TEST(ProgressEngineTest, AllgatherTakesBlocksOfAnySize) {
  Node node(3);
  std::mt19937 random(2);
  std::vector<Submitted> s(3);
  const int64_t rows[3] = {0, 3000, 5};
  std::vector<int64_t> want;
  for (uint32_t r = 0; r < 3; ++r) {
    std::vector<int64_t> v(static_cast<size_t>(rows[r]) * 2);
    for (size_t i = 0; i < v.size(); ++i) v[i] = r * 1000000 + i;
    want.insert(want.end(), v.begin(), v.end());
    s[r].input = Bytes(v);
    Signature& g = s[r].op->signature;
    g.kind = Kind::kAllgather;
    g.dtype = DType::kInt64;
    g.dims = 2;
    g.shape[0] = rows[r];
    g.shape[1] = 2;
  }
  for (uint32_t r : {2u, 0u, 1u}) node.Submit(r, 9, s[r]);
  node.Settle(random);
  for (uint32_t r = 0; r < 3; ++r) {
    ASSERT_TRUE(s[r].op->done.load());
    EXPECT_EQ(s[r].op->gathered_rows, 3005);
    EXPECT_EQ(Values<int64_t>(s[r].op->output, s[r].op->gathered_bytes), want);
  }
}

TEST(ProgressEngineTest, MismatchFailsOnEveryRankAndTheNameIsFreeAgain) {
  Node node(2);
  std::mt19937 random(3);
  Submitted a = Allreduce({1, 2, 3}, Op::kSum, false);
  Submitted b = Allreduce({1, 2, 3, 4}, Op::kSum, false);
  node.Submit(1, 3, b);
  node.Submit(0, 3, a);
  node.Settle(random);
  for (Submitted* s : {&a, &b}) {
    ASSERT_TRUE(s->op->done.load());
    EXPECT_EQ(s->op->status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(s->op->status.message(),
              "allreduce 'x': mismatched shapes: rank 0 submitted [3], rank 1 "
              "submitted [4]; every rank must submit the same shape");
  }
  Submitted c = Allreduce({1}, Op::kSum, true);
  Submitted d = Allreduce({2}, Op::kSum, true);
  node.Submit(0, 3, c);
  node.Submit(1, 3, d);
  node.Settle(random);
  EXPECT_TRUE(c.op->status.ok());
  EXPECT_EQ(Values<float>(d.op->output, 4), std::vector<float>{3});
}

// A slower rank may still read what others submitted in the last generation.
TEST(ProgressEngineTest, ARankDoesNotArriveAtWhatCannotCome) {
  Node node(2);
  std::mt19937 random(3);
  node.board->rank(1).state.store(static_cast<uint32_t>(RankState::kLeft));
  node.board->header().left_count.store(1);
  for (int round = 0; round < 3; ++round) {
    Submitted a = Allreduce({1}, Op::kSum, false);
    node.Submit(0, 3, a);
    node.ranks[0]->engine->RecheckFailures();
    node.Settle(random);
    EXPECT_EQ(a.op->status.code(), Code::kAborted);
  }
  EXPECT_EQ(node.board->arrival(3, 0).generation.load(), 0u);
}

TEST(ProgressEngineTest, RankThatLeftFailsLaterOperations) {
  Node node(2);
  std::mt19937 random(3);
  std::strcpy(node.board->header().left_text, "rank 1 has shut down");
  node.board->rank(1).state.store(static_cast<uint32_t>(RankState::kLeft));
  node.board->header().left_count.store(1);
  Submitted a = Allreduce({1}, Op::kSum, false);
  node.Submit(0, 3, a);
  node.Settle(random);
  ASSERT_TRUE(a.op->done.load());
  EXPECT_EQ(a.op->status.code(), Code::kAborted);
  EXPECT_EQ(a.op->status.message(),
            "allreduce 'x': rank 1 has shut down; operations that need it "
            "cannot run");
}

// The failure was counted before this rank arrived, so the rank finds it only
// if it checks the operation itself.
TEST(ProgressEngineTest, ArrivingAtAnOperationThatHasFailedAlreadyEndsIt) {
  Node node(2);
  std::mt19937 random(3);
  Submitted a = Allreduce({1}, Op::kSum, false);
  Submitted b = Allreduce({1}, Op::kSum, false);
  node.Submit(0, 3, a);
  node.board->Fail(3, 1, Code::kAborted, "rank 7 has shut down");
  node.Settle(random);
  ASSERT_TRUE(a.op->done.load());
  node.Submit(1, 3, b);
  node.ranks[1]->engine->RecheckFailures();
  node.Settle(random);
  ASSERT_TRUE(b.op->done.load());
  EXPECT_EQ(b.op->status.message(), "allreduce 'x': rank 7 has shut down");
}

Submitted Allgather(const std::vector<int64_t>& v) {
  Submitted s;
  s.op->name = "g";
  s.op->signature.kind = Kind::kAllgather;
  s.op->signature.dtype = DType::kInt64;
  s.op->signature.dims = 1;
  s.op->signature.shape[0] = static_cast<int64_t>(v.size());
  s.input = Bytes(v);
  return s;
}

// Local ranks may be in another order than global ranks.
TEST(ProgressEngineTest, AllgatherIsInTheOrderOfGlobalRanks) {
  for (size_t n : {size_t{2}, size_t{2000}}) {  // the small way and the large
    Node node(2, 4096, 3, /*backwards=*/true);
    std::mt19937 random(5);
    Submitted a = Allgather(std::vector<int64_t>(n, 10));      // global rank 1
    Submitted b = Allgather(std::vector<int64_t>(n + 1, 20));  // global rank 0
    node.Submit(0, 1, a);
    node.Submit(1, 1, b);
    node.Settle(random);
    std::vector<int64_t> want(n + 1, 20);
    want.resize(2 * n + 1, 10);
    for (Submitted* s : {&a, &b}) {
      ASSERT_TRUE(s->op->done.load());
      EXPECT_EQ(Values<int64_t>(s->op->output, s->op->gathered_bytes), want);
    }
  }
}

// Other ranks need not wait for a rank without rows, so they may be a step
// ahead when it reads the ranks' numbers of rows.
TEST(ProgressEngineTest, RanksOfAnAllgatherMayRunAheadOfOneWithoutRows) {
  Node node(3);
  std::vector<Submitted> first, second;
  for (int64_t r = 0; r < 3; ++r) {
    first.push_back(Allgather(std::vector<int64_t>(r == 2 ? 0 : 3 + r, r)));
    second.push_back(
        Allgather(std::vector<int64_t>(r == 2 ? 0 : 8 + r, 10 + r)));
  }
  for (uint32_t r = 0; r < 3; ++r) node.Submit(r, 1, first[r]);
  for (int n = 0; n < 40; ++n) node.ranks[n % 2]->engine->Step();
  ASSERT_TRUE(first[0].op->done.load());
  ASSERT_TRUE(first[1].op->done.load());
  for (uint32_t r = 0; r < 2; ++r) node.Submit(r, 1, second[r]);
  std::mt19937 random(5);
  node.Settle(random);
  ASSERT_TRUE(first[2].op->done.load());
  EXPECT_EQ(Values<int64_t>(first[2].op->output, first[2].op->gathered_bytes),
            (std::vector<int64_t>{0, 0, 0, 1, 1, 1, 1}));
  node.Submit(2, 1, second[2]);
  node.Settle(random);
  EXPECT_EQ(second[2].op->gathered_rows, 17);
}

// A rank that waits in generation 1 must not wait forever while another rank,
// which did not wait, has already failed alone in generation 2.
TEST(ProgressEngineTest, AnOperationThatOthersHaveGivenUpEnds) {
  Node node(3);
  std::mt19937 random(6);
  std::strcpy(node.board->header().left_text, "rank 2 has shut down");
  node.board->rank(2).state.store(static_cast<uint32_t>(RankState::kLeft));
  node.board->header().left_count.store(1);
  Submitted a = Allreduce({1}, Op::kSum, false);
  Submitted b = Allreduce({1}, Op::kSum, false);
  Submitted late = Allreduce({1}, Op::kSum, false);
  for (Submitted* s : {&a, &b}) {
    node.Submit(0, 3, *s);
    node.Settle(random);
    ASSERT_TRUE(s->op->done.load());
  }
  node.Submit(1, 3, late);
  node.ranks[1]->engine->RecheckFailures();
  node.Settle(random);
  ASSERT_TRUE(late.op->done.load());
  EXPECT_EQ(late.op->status.code(), Code::kAborted);
  EXPECT_NE(late.op->status.message().find("rank 2 has shut down"),
            std::string::npos);
}

// The last rank to arrive claims an eager operation and dies before or after it
// commits. The abort that follows gives all ranks the same outcome.
TEST(ProgressEngineTest, DeathOfWhoCarriesOutASmallOperationEndsItAlike) {
  for (const bool committed : {false, true}) {
    Node node(3);
    std::mt19937 random(7);
    Submitted a = Allreduce({1}, Op::kSum, false);
    Submitted b = Allreduce({2}, Op::kSum, false);
    node.Submit(0, 3, a);
    node.Submit(1, 3, b);
    ASSERT_TRUE(node.board->ClaimReduction(3, 1));
    const float result = 42;
    std::memcpy(node.board->pool(2, 0), &result, sizeof(result));
    if (committed) {
      ASSERT_TRUE(node.board->CommitEager(3, 1, {2, 0}));
    }
    node.board->Abort(Code::kAborted, "rank 2 died");
    node.Settle(random);
    for (Submitted* s : {&a, &b}) {
      ASSERT_TRUE(s->op->done.load());
      EXPECT_EQ(s->op->status.ok(), committed);
      if (committed) {
        EXPECT_EQ(Values<float>(s->op->output, 4), std::vector<float>{42});
      } else {
        EXPECT_EQ(s->op->status.message(), "allreduce 'x': rank 2 died");
      }
    }
  }
}

// After an abort, the rank that claimed the operation may still write its sum
// to this rank's buffer.
TEST(ProgressEngineTest, NoBufferIsUsedAgainAfterAnAbort) {
  Node node(3);
  EagerPool pool(node.board.get(), 1);
  for (uint32_t slot = 0; slot < 3; ++slot) EXPECT_GE(pool.Take(slot, 1), 0);
  EXPECT_EQ(pool.Take(3, 1), kNoBuffer);
  EXPECT_TRUE(node.board->ClaimReduction(0, 1));
  node.board->Decide(0, 1, Outcome::kAborted);
  EXPECT_EQ(pool.Take(3, 1), kNoBuffer);
  EXPECT_EQ(node.board->Decide(1, 1, Outcome::kCommitted), Outcome::kCommitted);
  EXPECT_GE(pool.Take(3, 1), 0);  // rendezvous: no rank reads the buffer
}

// From 1 MiB on, the kind of stores is chosen by measurement; the values do not
// depend on it.
TEST(ProgressEngineTest, LargeRunsAreRightWithEitherStore) {
  Node node(2, 64 << 10);
  std::mt19937 random(8);
  std::vector<float> v(300000);
  for (int round = 0; round < 4; ++round) {
    for (size_t i = 0; i < v.size(); ++i) v[i] = round + i % 1000;
    std::vector<float> want(v.size());
    for (size_t i = 0; i < v.size(); ++i) want[i] = 2 * v[i];
    Submitted a = Allreduce(v, Op::kSum, false);
    Submitted b = Allreduce(v, Op::kSum, true);
    node.Submit(0, 3, a);
    node.Submit(1, 3, b);
    node.Settle(random);
    ASSERT_TRUE(a.op->done.load() && b.op->done.load());
    EXPECT_EQ(Values<float>(a.op->output, v.size() * 4), want);
    EXPECT_EQ(Values<float>(b.op->output, v.size() * 4), want);
  }
  // The second and the third run were measured: begin and end of each.
  for (const auto& rank : node.ranks) EXPECT_EQ(rank->table.now, 4 * 1000);
}

// Puts a rank's tensor into its arena at `offset`, for an in-place reduction.
Submitted ArenaAllreduce(const Node& node, uint32_t rank, uint64_t offset,
                         const std::vector<float>& v) {
  Submitted s = Allreduce(v, Op::kSum, true);
  std::byte* const tensor = node.board->arena(rank) + offset;
  std::memcpy(tensor, s.input.data(), s.input.size());
  s.op->input = s.op->output = tensor;
  s.op->arena = offset + 1;
  return s;
}

void SubmitArena(Node& node, uint32_t r, uint32_t slot, Submitted& s) {
  node.Begin(r, slot, *s.op);
  Arrive(*node.board, r, node.ranks[r]->engine->cursor(), *s.op, false,
         &node.ranks[r]->pool);
}

// A step must be short, so that the driver thread can check its clock.
TEST(ProgressEngineTest, AStepMovesABoundedNumberOfBytes) {
  constexpr uint32_t kDepth = 64;
  Node node(2, 2 << 20, kDepth);
  std::vector<float> v(16 << 20, 1.f);
  std::vector<Submitted> s;
  for (uint32_t r = 0; r < 2; ++r) s.push_back(Allreduce(v, Op::kSum, true));
  for (uint32_t r = 0; r < 2; ++r) node.Submit(r, 5, s[r]);
  ProgressEngine& first = *node.ranks[0]->engine;
  ProgressEngine& second = *node.ranks[1]->engine;
  const auto consumed = [&] {
    return CountAt(node.board->progress(5, 0).consumed.load(), 1);
  };
  // Everything that fits into the ring is staged and reduced, and can then be
  // consumed.
  while (first.Step()) {
  }
  while (second.Step()) {
  }
  while (consumed() == 0) ASSERT_TRUE(first.Step());
  const uint64_t chunk = (2 << 20) / 4;
  EXPECT_LE(consumed() * chunk, ChunkMover::kStepBytes + chunk);
  std::mt19937 random(1);
  node.Settle(random);
  for (const Submitted& one : s) {
    ASSERT_TRUE(one.op->done.load());
    EXPECT_EQ(Values<float>(one.op->output, 4), (std::vector<float>{2}));
  }
}

TEST(ProgressEngineTest, ArenaTensorsAreReducedWhereTheyLie) {
  for (uint32_t k : {2u, 3u, 4u}) {
    for (size_t n : {size_t{200}, size_t{5001}, size_t{1} << 20}) {
      Node node(k);
      std::mt19937 random(k);
      std::vector<float> want(n, 0);
      std::vector<Submitted> s;
      for (uint32_t r = 0; r < k; ++r) {
        std::vector<float> v(n);
        for (size_t i = 0; i < n; ++i) v[i] = 0.1f * (r + 1) + i % 1000;
        for (size_t i = 0; i < n; ++i) want[i] = r == 0 ? v[i] : want[i] + v[i];
        s.push_back(ArenaAllreduce(node, r, 64 * (r + 1), v));
      }
      for (uint32_t r = 0; r < k; ++r) SubmitArena(node, r, 5, s[r]);
      node.Settle(random);
      for (uint32_t r = 0; r < k; ++r) {
        ASSERT_TRUE(s[r].op->done.load()) << k << " " << n;
        EXPECT_TRUE(s[r].op->ran_in_arena);
        EXPECT_EQ(Values<float>(s[r].op->output, n * 4), want);
      }
      // Each rank has its own tensor: the others do not see what it writes.
      const float mine = 7;
      std::memcpy(s[0].op->output, &mine, sizeof(mine));
      EXPECT_EQ(Values<float>(s[1].op->output, 4)[0], want[0]);
    }
  }
}

TEST(ProgressEngineTest, OneTensorOutsideTheArenaMakesAllStage) {
  Node node(3);
  std::mt19937 random(3);
  const std::vector<float> v(3000, 1.f);
  Submitted a = ArenaAllreduce(node, 0, 0, v);
  Submitted b = Allreduce(v, Op::kSum, true);
  Submitted c = ArenaAllreduce(node, 2, 4096, v);
  SubmitArena(node, 0, 1, a);
  node.Submit(1, 1, b);
  SubmitArena(node, 2, 1, c);
  node.Settle(random);
  for (Submitted* s : {&a, &b, &c}) {
    ASSERT_TRUE(s->op->done.load());
    EXPECT_FALSE(s->op->ran_in_arena);
    EXPECT_EQ(Values<float>(s->op->output, 12000),
              std::vector<float>(3000, 3.f));
  }
}

// An offset of a peer that points outside of its arena is refused.
TEST(ProgressEngineTest, AnArenaTensorMustLieWithinItsArena) {
  Node node(2);
  std::mt19937 random(3);
  const std::vector<float> v(3000, 1.f);
  Submitted a = ArenaAllreduce(node, 0, 0, v);
  Submitted b = Allreduce(v, Op::kSum, true);
  b.op->input = b.op->output = b.input.data();
  b.op->arena = (16u << 20) - 64 + 1;
  SubmitArena(node, 0, 1, a);
  SubmitArena(node, 1, 1, b);
  node.Settle(random);
  ASSERT_TRUE(a.op->done.load());
  EXPECT_FALSE(a.op->ran_in_arena);
  EXPECT_EQ(Values<float>(b.op->output, 12000), std::vector<float>(3000, 2.f));
}

// After an abort a rank gets its error only when no peer can still write to its
// tensor.
class ArenaAbortTest : public testing::Test {
 protected:
  ArenaAbortTest() : node_(3) {
    const std::vector<float> v(size_t{3} << 18, 1.f);  // 3 chunks
    for (uint32_t r = 0; r < 3; ++r) {
      s_.push_back(ArenaAllreduce(node_, r, 0, v));
      SubmitArena(node_, r, 1, s_[r]);
    }
    for (uint32_t r = 0; r < 3; ++r) {
      EXPECT_TRUE(node_.ranks[r]->engine->Step());  // all have begun
      EXPECT_FALSE(s_[r].op->done.load());
    }
    node_.board->Abort(Code::kAborted, "rank 2 died");
  }
  void StepFirstTwo() {
    for (int n = 0; n < 40; ++n) node_.ranks[n % 2]->engine->Step();
  }

  Node node_;
  std::vector<Submitted> s_;
};

TEST_F(ArenaAbortTest, WaitsForAPeerThatMayStillWrite) {
  StepFirstTwo();
  EXPECT_FALSE(s_[0].op->done.load());
  for (int n = 0; n < 4; ++n) node_.ranks[2]->engine->Step();
  StepFirstTwo();
  for (uint32_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(s_[r].op->done.load());
    EXPECT_EQ(s_[r].op->status.message(),
              "allreduce 'x': rank 2 died (the tensor was being reduced in "
              "place: its contents are undefined)");
    EXPECT_TRUE(node_.ranks[r]->table.detached.empty());
  }
}

// A peer that never saw the ticket has its error already, so no rank may write
// to its tensor.
TEST_F(ArenaAbortTest, NothingIsWrittenOnceTheAbortIsSeen) {
  const size_t bytes = size_t{3} << 20;
  const auto before = Values<float>(s_[0].op->output, bytes);
  for (int n = 0; n < 10; ++n) node_.ranks[2]->engine->Step();
  EXPECT_EQ(Values<float>(s_[0].op->output, bytes), before);
}

TEST_F(ArenaAbortTest, DoesNotWaitForOneThatIsGone) {
  node_.board->rank(2).state.store(static_cast<uint32_t>(RankState::kLeft));
  StepFirstTwo();
  for (uint32_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(s_[r].op->done.load());
    EXPECT_TRUE(node_.ranks[r]->table.detached.empty());
  }
}

TEST_F(ArenaAbortTest, TakesTheTensorAwayFromOneThatIsStuck) {
  StepFirstTwo();
  EXPECT_FALSE(s_[0].op->done.load());
  node_.ranks[0]->table.abort_is_overdue = true;
  StepFirstTwo();
  ASSERT_TRUE(s_[0].op->done.load());
  EXPECT_EQ(node_.ranks[0]->table.detached,
            std::vector<Operation*>{s_[0].op.get()});
  EXPECT_FALSE(s_[1].op->done.load());
}

}  // namespace
}  // namespace maypole
