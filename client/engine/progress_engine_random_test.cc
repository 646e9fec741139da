// Random programs on one board: all kinds of operations, overlapping process
// sets, random sizes, orders and interleavings, several operations in flight;
// half of the programs have an abort at a random moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/testing/progress_engine_testing.h"

namespace maypole {
namespace {

// One operation, as all ranks of its set submit it. Elements are int32 and
// wrap, so sums do not depend on the order.
struct Planned {
  std::shared_ptr<const ProcessSet> set;
  uint32_t slot = 0;
  Signature signature;
  std::vector<Submitted> by_rank;            // by local rank
  std::vector<std::vector<int32_t>> want;    // by local rank
  std::vector<std::vector<int64_t>> splits;  // alltoall: by position
};

class RandomProgram {
 public:
  RandomProgram(uint32_t seed, bool with_abort)
      : random_(seed),
        k_(1 + random_() % 4),
        node_(k_, 4096, 2 + random_() % 3, random_() % 4 == 0) {
    MakeSets();
    const int steps = 1 + static_cast<int>(random_() % 6);
    abort_at_ = with_abort ? static_cast<int>(random_() % 400) : -1;
    for (int i = 0; i < steps && !node_.board->aborted(); ++i) Round();
  }

 private:
  static constexpr uint32_t kSlotsOfASet = 8;
  static constexpr Kind kKinds[] = {Kind::kAllreduce, Kind::kAllreduce,
                                    Kind::kAllgather, Kind::kBroadcast,
                                    Kind::kAlltoall,  Kind::kReducescatter,
                                    Kind::kBarrier};

  // The first set has all ranks; the others have any of them.
  void MakeSets() {
    sets_.push_back(node_.all);
    for (uint32_t id = 1; id <= 3; ++id) {
      std::vector<int> ranks;
      for (int r = 0; r < static_cast<int>(k_); ++r) {
        if (random_() % 2 == 0) ranks.push_back(r);
      }
      if (!ranks.empty()) sets_.push_back(node_.Set(id, ranks));
    }
  }

  // The local rank at a position of the set.
  uint32_t LocalAt(const ProcessSet& set, size_t position) const {
    return static_cast<uint32_t>(
        LocalRankOf(node_.board->config(), set.ranks[position]));
  }

  std::vector<int32_t> Random(size_t n) {
    std::vector<int32_t> v(n);
    for (int32_t& x : v) x = static_cast<int32_t>(random_());
    return v;
  }

  Planned Make(uint32_t number) {
    const uint32_t which = random_() % static_cast<uint32_t>(sets_.size());
    Planned p;
    p.set = sets_[which];
    p.slot = which * kSlotsOfASet + number;
    p.by_rank.resize(k_);
    p.want.resize(k_);
    Signature& s = p.signature;
    s.kind = kKinds[random_() % std::size(kKinds)];
    s.dtype = DType::kInt32;
    s.op = random_() % 3 == 0 ? Op::kMax : Op::kSum;
    s.dims = 1;
    if (s.kind == Kind::kReducescatter) s.op = Op::kSum;
    const size_t n = random_() % 3 == 0 ? random_() % 20000 : random_() % 40;
    if (s.kind == Kind::kBroadcast) {
      s.root = p.set->ranks[random_() % p.set->ranks.size()];
    }
    std::vector<std::vector<int32_t>> inputs;  // by position
    for (size_t i = 0; i < p.set->ranks.size(); ++i) {
      const bool uneven = Gathers(s.kind);
      const bool empty = s.kind == Kind::kBarrier;
      inputs.push_back(Random(empty ? 0 : uneven ? random_() % (n + 1) : n));
      Submitted& mine = p.by_rank[LocalAt(*p.set, i)];
      mine.input = Bytes(inputs[i]);
      mine.in_place = random_() % 2 == 0;
      mine.op->name = "x";
      mine.op->set = p.set;
      mine.op->signature = s;
      mine.op->signature.shape[0] = static_cast<int64_t>(inputs[i].size());
      if (s.kind == Kind::kAlltoall) {
        p.splits.push_back(Split(inputs[i].size(), p.set->ranks.size()));
        mine.op->splits = p.splits.back();
      }
    }
    Expect(inputs, p);
    return p;
  }

  std::vector<int64_t> Split(size_t rows, size_t ranks) {
    std::vector<int64_t> splits(ranks);
    for (size_t i = 0; i + 1 < ranks; ++i) {
      splits[i] = static_cast<int64_t>(random_() % (rows + 1));
      rows -= static_cast<size_t>(splits[i]);
    }
    splits.back() = static_cast<int64_t>(rows);
    return splits;
  }

  static std::vector<int32_t> Reduced(
      const std::vector<std::vector<int32_t>>& inputs, Op op) {
    std::vector<int32_t> out = inputs[0];
    for (size_t r = 1; r < inputs.size(); ++r) {
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] =
            op == Op::kMax
                ? std::max(out[i], inputs[r][i])
                : static_cast<int32_t>(static_cast<uint32_t>(out[i]) +
                                       static_cast<uint32_t>(inputs[r][i]));
      }
    }
    return out;
  }

  void Expect(const std::vector<std::vector<int32_t>>& inputs, Planned& p) {
    const Signature& s = p.signature;
    std::vector<int32_t> gathered;
    for (const auto& v : inputs) {
      gathered.insert(gathered.end(), v.begin(), v.end());
    }
    const std::vector<int32_t> sum =
        Reduces(s.kind) ? Reduced(inputs, s.op) : std::vector<int32_t>();
    size_t first = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::vector<int32_t>& want = p.want[LocalAt(*p.set, i)];
      if (s.kind == Kind::kAllreduce) want = sum;
      if (s.kind == Kind::kAllgather) want = gathered;
      if (s.kind == Kind::kBroadcast) {
        want = inputs[static_cast<size_t>(p.set->PositionOf(s.root))];
      }
      if (s.kind == Kind::kReducescatter) {
        const size_t rows =
            sum.size() / inputs.size() + (i < sum.size() % inputs.size());
        want.assign(sum.begin() + static_cast<long>(first),
                    sum.begin() + static_cast<long>(first + rows));
        first += rows;
      }
      if (s.kind == Kind::kAlltoall) want = ReceivedBy(i, inputs, p.splits);
    }
  }

  static std::vector<int32_t> ReceivedBy(
      size_t me, const std::vector<std::vector<int32_t>>& inputs,
      const std::vector<std::vector<int64_t>>& splits) {
    std::vector<int32_t> out;
    for (size_t from = 0; from < inputs.size(); ++from) {
      int64_t at = 0;
      for (size_t to = 0; to < me; ++to) at += splits[from][to];
      out.insert(out.end(), inputs[from].begin() + at,
                 inputs[from].begin() + at + splits[from][me]);
    }
    return out;
  }

  void Step() {
    node_.ranks[random_() % k_]->engine->Step();
    if (abort_at_ >= 0 && abort_at_-- == 0) {
      node_.board->Abort(Code::kAborted, "rank 9 died");
    }
  }

  void Round() {
    std::vector<Planned> plan;
    const uint32_t count = 1 + random_() % 5;
    for (uint32_t i = 0; i < count; ++i) plan.push_back(Make(i));
    std::vector<std::pair<uint32_t, uint32_t>> submits;  // rank, operation
    for (uint32_t i = 0; i < count; ++i) {
      for (const uint32_t r : plan[i].set->locals) submits.emplace_back(r, i);
    }
    std::shuffle(submits.begin(), submits.end(), random_);
    for (auto [r, i] : submits) {
      EXPECT_TRUE(node_.Submit(r, plan[i].slot, plan[i].by_rank[r]));
      for (uint32_t n = random_() % 8; n > 0; --n) Step();
    }
    for (int n = 0; abort_at_ >= 0 && n < 400; ++n) Step();
    node_.Settle(random_);
    for (Planned& p : plan) Check(p);
  }

  void Check(Planned& p) {
    const std::string what = std::string(Name(p.signature.kind)) + " of set " +
                             std::to_string(p.set->id);
    const bool ok = p.by_rank[p.set->locals[0]].op->status.ok();
    for (const uint32_t r : p.set->locals) {
      const Operation& op = *p.by_rank[r].op;
      ASSERT_TRUE(op.done.load()) << what;
      ASSERT_EQ(op.status.ok(), ok) << what << ": ranks differ in outcome";
      if (!ok) {
        EXPECT_TRUE(node_.board->aborted()) << op.status.message();
        EXPECT_NE(op.status.message().find("rank 9 died"), std::string::npos);
        continue;
      }
      if (p.signature.kind == Kind::kBarrier) continue;
      EXPECT_EQ(Values<int32_t>(op.output, p.want[r].size() * 4), p.want[r])
          << what;
    }
  }

  std::mt19937 random_;
  uint32_t k_;
  Node node_;
  std::vector<std::shared_ptr<const ProcessSet>> sets_;
  int abort_at_ = -1;
};

TEST(ProgressEngineTest, RandomProgramsGiveTheReferenceResult) {
  for (uint32_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    RandomProgram program(seed, false);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(ProgressEngineTest, AbortsEndEverythingAlikeOnAllRanks) {
  for (uint32_t seed = 0; seed < 800; ++seed) {
    SCOPED_TRACE(seed);
    RandomProgram program(seed, true);
    if (testing::Test::HasFailure()) return;
  }
}

// Ranks 0 and 1 have a set of their own and get far ahead, while rank 2 has not
// read the ticket of an operation that needs it.
TEST(ProgressEngineTest, TicketsThatARankStillNeedsAreNotOverwritten) {
  Node node(3);
  std::mt19937 random(1);
  const auto pair = node.Set(1, {0, 1});
  std::vector<Submitted> shared;
  node.board->rank(2).tickets_read.store(1);  // the first ticket
  for (uint32_t r = 0; r < 3; ++r) {
    shared.push_back(Allreduce({1.f, 2.f}, Op::kSum, false));
    shared[r].op->signature.prescale = 2;  // so that the last rank copies too
  }
  for (uint32_t r : {2u, 0u, 1u}) node.Submit(r, 9, shared[r]);
  bool held = false;
  uint32_t generation = 0;
  for (uint32_t i = 0; i < 2 * kTicketCells && !held; ++i) {
    Submitted a = Allreduce({1.f}, Op::kSum, false);
    Submitted b = Allreduce({1.f}, Op::kSum, false);
    a.op->set = b.op->set = pair;
    held = !node.Submit(0, 1, a);
    held = !node.Submit(1, 1, b) || held;
    generation = b.op->generation;
    for (int n = 0; n < 4; ++n) node.ranks[n % 2]->engine->Step();
    if (held) {
      EXPECT_FALSE(a.op->done.load());
      EXPECT_GT(i, kTicketCells / 4);
      // Rank 2 finally reads its tickets; then there is room again.
      node.Settle(random);
      ASSERT_TRUE(shared[2].op->done.load());
      EXPECT_EQ(Values<float>(shared[2].op->output, 8),
                (std::vector<float>{6, 12}));
      EXPECT_FALSE(PlaceHeldTicket(*node.board, 0, 1, generation));
      node.board->rank(2).tickets_read.store(kAllRead);
      EXPECT_TRUE(PlaceHeldTicket(*node.board, 0, 1, generation));
      node.Settle(random);
      EXPECT_TRUE(a.op->done.load());
    } else {
      ASSERT_TRUE(a.op->done.load() && b.op->done.load());
    }
  }
  EXPECT_TRUE(held);
}

}  // namespace
}  // namespace maypole
