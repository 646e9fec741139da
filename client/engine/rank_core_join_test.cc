// Ranks that join at any time, and the others' results.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/engine/rank_core.h"
#include "client/testing/rank_core_testing.h"

namespace maypole {
namespace {

TEST(RankCoreJoinTest, ARankThatHasJoinedSubmitsNothingAndIsNotWaitedFor) {
  World w(3);
  const auto join = w.Join(1);
  Tensor late = Make(Kind::kAllreduce, "a", {1});
  late.op->set = w.cores[1]->FindSet(0);
  const Status s = w.Start(1, late.op);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_NE(s.message().find("this rank has joined"), std::string::npos);
  Tensor a = Make(Kind::kAllreduce, "a", {-4}, Op::kMax);
  Tensor b = Make(Kind::kAllreduce, "a", {-5}, Op::kMax);
  EXPECT_TRUE(w.Submit(0, a).ok());
  EXPECT_TRUE(w.Submit(2, b).ok());
  w.Settle();
  ASSERT_TRUE(a.op->done.load() && b.op->done.load());
  EXPECT_EQ(a.output, std::vector<int32_t>{-4});  // not 0
  EXPECT_FALSE(join->done.load());
  const auto second = w.Join(2);
  const auto third = w.Join(0);
  w.Settle();
  for (const auto& op : {join, second, third}) {
    ASSERT_TRUE(op->done.load());
    EXPECT_TRUE(op->status.ok());
    EXPECT_EQ(op->answer, join->answer);
  }
  EXPECT_EQ(w.board->header().aside_count.load(), 0u);
}

// Where the ring of names wraps around, a joined rank finds later operations
// first. Even then its own next unnamed operation must be the others' next one.
TEST(RankCoreJoinTest, AJoinedRankFollowsUnnamedOperationsAroundTheirRing) {
  World w(2);
  const uint32_t set = w.MakeSet({0, 1});
  const auto submit = [&](uint32_t r, int32_t value) {
    auto t = std::make_unique<Tensor>(
        Make(Kind::kAllreduce, "", {value}, Op::kSum, set));
    EXPECT_TRUE(w.Submit(r, *t).ok());
    return t;
  };
  for (uint32_t i = 0; i + 1 < kUnnamedSlotsOfASet; ++i) {
    const auto a = submit(0, 1), b = submit(1, 2);
    w.Settle();
    ASSERT_TRUE(a->op->done.load() && b->op->done.load());
  }
  const auto join = w.Join(1);
  const auto last = submit(0, 5);   // the ring's last name
  const auto first = submit(0, 6);  // and its first one again
  for (int n = 0; n < 200; ++n) w.Step();
  w.Settle();
  EXPECT_EQ(last->output, std::vector<int32_t>{5});
  EXPECT_EQ(first->output, std::vector<int32_t>{6});
  const auto other = w.Join(0);
  w.Settle();
  ASSERT_TRUE(join->done.load() && other->done.load());
  const auto a = submit(0, 10), b = submit(1, 20);
  w.Settle();
  ASSERT_TRUE(a->op->done.load() && b->op->done.load());
  EXPECT_EQ(a->output, std::vector<int32_t>{30});
  EXPECT_EQ(b->op->name, a->op->name);
}

// Rounds of operations on several sets. In each round, every rank takes part in
// the first few operations and then joins, without waiting for anything.
class JoinProgram {
 public:
  explicit JoinProgram(uint32_t seed)
      : random_(seed), k_(2 + random_() % 3), w_(k_, seed) {
    sets_.push_back(w_.cores[0]->FindSet(0));
    for (int n = 0; n < 2; ++n) {
      std::vector<int> ranks;
      for (int r = 0; r < static_cast<int>(k_); ++r) {
        if (random_() % 2 == 0) ranks.push_back(r);
      }
      if (ranks.empty()) continue;
      const uint32_t id = w_.MakeSet(ranks);
      sets_.push_back(w_.cores[0]->FindSet(id));
    }
    for (int round = 0; round < 3; ++round) rounds_.push_back(MakeRound());
    Play();
    for (const Round& round : rounds_) Check(round);
  }

 private:
  struct Planned {
    std::shared_ptr<const ProcessSet> set;
    Kind kind = Kind::kAllreduce;
    Op op = Op::kSum;
    int root = 0;
    std::string name;
    std::vector<Tensor> by_rank;
    std::vector<bool> takes_part;
  };

  std::vector<int32_t> Values(size_t n) {
    std::vector<int32_t> v(n);
    for (int32_t& x : v) x = static_cast<int32_t>(random_() % 2000) - 1000;
    return v;
  }

  Planned Make(int number, const std::vector<int>& limit) {
    static constexpr Kind kKinds[] = {Kind::kAllreduce,     Kind::kAllgather,
                                      Kind::kBroadcast,     Kind::kAlltoall,
                                      Kind::kReducescatter, Kind::kBarrier};
    Planned p;
    p.set = sets_[random_() % sets_.size()];
    p.kind = kKinds[random_() % std::size(kKinds)];
    static constexpr Op kOps[] = {Op::kSum, Op::kMin, Op::kMax, Op::kProduct};
    if (p.kind == Kind::kAllreduce) p.op = kOps[random_() % 4];
    if (random_() % 3 != 0) p.name = "n" + std::to_string(number);
    p.root = p.set->ranks[random_() % p.set->ranks.size()];
    p.by_rank.resize(k_);
    p.takes_part.resize(k_);
    const size_t n = random_() % 4 == 0 ? random_() % 9000 : random_() % 30;
    for (const int r : p.set->ranks) {
      const auto at = static_cast<size_t>(r);
      p.takes_part[at] = number < limit[at];
      const bool uneven = Gathers(p.kind);
      Tensor& t = p.by_rank[at];
      t = maypole::Make(p.kind, p.name,
                        Values(uneven ? random_() % (n + 1) : n), p.op,
                        p.set->id);
      if (p.kind == Kind::kBarrier) t.input.clear();
      if (p.kind == Kind::kBroadcast) t.op->signature.root = p.root;
      if (p.kind == Kind::kAlltoall) {
        t.op->splits.assign(p.set->ranks.size(), 0);
        for (size_t i = 0; i < t.input.size(); ++i) {
          ++t.op->splits[random_() % p.set->ranks.size()];
        }
      }
    }
    return p;
  }

  struct Round {
    std::vector<int> limit;  // by rank: in how many it takes part
    std::vector<Planned> plan;
    std::vector<std::shared_ptr<Operation>> joins;
  };

  Round MakeRound() {
    const int count = 1 + static_cast<int>(random_() % 8);
    Round round;
    round.limit.resize(k_);
    for (int& n : round.limit) n = static_cast<int>(random_() % (count + 1));
    for (int i = 0; i < count; ++i) round.plan.push_back(Make(i, round.limit));
    round.joins.resize(k_);
    return round;
  }

  // Does rank r's next action. A rank waits only for its joins, and begins the
  // next round while others still end theirs.
  void Act(uint32_t r, std::vector<int>& next, std::vector<size_t>& at) {
    if (at[r] == rounds_.size()) return;
    Round& round = rounds_[at[r]];
    if (round.joins[r] != nullptr) {
      if (!round.joins[r]->done.load()) return;
      next[r] = 0;
      ++at[r];
    } else if (next[r] == round.limit[r]) {
      round.joins[r] = w_.Join(r);
    } else {
      Planned& p = round.plan[static_cast<size_t>(next[r]++)];
      if (!p.set->Has(static_cast<int>(r))) return;
      const Status s = w_.Submit(r, p.by_rank[r]);
      EXPECT_TRUE(s.ok()) << s.message();
    }
  }

  void Play() {
    std::vector<int> next(k_, 0);
    std::vector<size_t> at(k_, 0);
    for (int turn = 0; turn < 100000; ++turn) {
      Act(random_() % k_, next, at);
      for (uint32_t n = random_() % 10; n > 0; --n) w_.Step();
      if (std::count(at.begin(), at.end(), rounds_.size()) == k_) break;
    }
    w_.Settle();
  }

  void Check(const Round& round) {
    for (const auto& join : round.joins) {
      ASSERT_TRUE(join != nullptr && join->done.load());
      EXPECT_TRUE(join->status.ok()) << join->status.message();
      EXPECT_EQ(join->answer, round.joins[0]->answer);
    }
    for (const Planned& p : round.plan) Check(p);
  }

  void Check(const Planned& p) {
    const std::string what = std::string(Name(p.kind)) + " '" + p.name +
                             "' of " + std::to_string(p.set->id) + " " +
                             std::string(Name(p.op));
    for (const int r : p.set->ranks) {
      const auto at = static_cast<size_t>(r);
      if (!p.takes_part[at]) continue;
      const Tensor& t = p.by_rank[at];
      ASSERT_TRUE(t.op->done.load()) << what;
      if (p.kind == Kind::kBroadcast &&
          !p.takes_part[static_cast<size_t>(p.root)]) {
        EXPECT_EQ(t.op->status.code(), Code::kFailedPrecondition) << what;
        continue;
      }
      ASSERT_TRUE(t.op->status.ok()) << what << t.op->status.message();
      if (p.kind == Kind::kBarrier) continue;
      EXPECT_EQ(t.Result(), Want(p, r)) << what;
    }
  }

  std::vector<int32_t> Reduced(const Planned& p) const {
    std::vector<int32_t> out;
    for (const int r : p.set->ranks) {
      if (!p.takes_part[static_cast<size_t>(r)]) continue;
      const std::vector<int32_t>& in = p.by_rank[static_cast<size_t>(r)].input;
      if (out.empty()) {
        out = in;
        continue;
      }
      for (size_t i = 0; i < out.size(); ++i) {
        if (p.op == Op::kMin) out[i] = std::min(out[i], in[i]);
        if (p.op == Op::kMax) out[i] = std::max(out[i], in[i]);
        if (p.op == Op::kSum) out[i] += in[i];
        if (p.op == Op::kProduct) {
          out[i] = static_cast<int32_t>(static_cast<uint32_t>(out[i]) *
                                        static_cast<uint32_t>(in[i]));
        }
      }
    }
    return out;
  }

  std::vector<int32_t> Want(const Planned& p, int rank) const {
    const auto mine = static_cast<size_t>(p.set->PositionOf(rank));
    if (p.kind == Kind::kAllreduce) return Reduced(p);
    if (p.kind == Kind::kBroadcast) {
      return p.by_rank[static_cast<size_t>(p.root)].input;
    }
    std::vector<int32_t> out;
    if (p.kind == Kind::kReducescatter) {
      const std::vector<int32_t> sum = Reduced(p);
      const size_t n = p.set->ranks.size();
      const size_t first =
          sum.size() / n * mine + std::min(mine, sum.size() % n);
      const size_t rows = sum.size() / n + (mine < sum.size() % n ? 1 : 0);
      return {sum.begin() + static_cast<long>(first),
              sum.begin() + static_cast<long>(first + rows)};
    }
    for (const int r : p.set->ranks) {
      const Tensor& t = p.by_rank[static_cast<size_t>(r)];
      if (!p.takes_part[static_cast<size_t>(r)]) continue;
      int64_t begin = 0, end = static_cast<int64_t>(t.input.size());
      if (p.kind == Kind::kAlltoall) {
        for (size_t i = 0; i < mine; ++i) begin += t.op->splits[i];
        end = begin + t.op->splits[mine];
      }
      out.insert(out.end(), t.input.begin() + begin, t.input.begin() + end);
    }
    return out;
  }

  std::mt19937 random_;
  uint32_t k_;
  World w_;
  std::vector<std::shared_ptr<const ProcessSet>> sets_;
  std::vector<Round> rounds_;
};

TEST(RankCoreJoinTest, JoinsAtAnyTimeLeaveTheOthersRightResults) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    JoinProgram program(seed);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace maypole
