// Joins: which nodes must stand in, and when the join ends.
#include "coordinator/core/ordering/joins.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ranks = std::vector<uint32_t>;

// Node n0 with ranks 0 and 1, n1 with rank 2, n2 with rank 3; epoch 1 runs.
class JoinsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    bed_.Ready(a_, 4, {0, 1});
    bed_.Ready(b_, 4, {2});
    bed_.Ready(c_, 4, {3});
  }
  TestBed bed_;
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
  Executor& c_ = bed_.Connect("j", "n2");
};

TEST_F(JoinsTest, ANodeStandsInForWhatIsPendingWhenAllItsRanksHaveJoined) {
  bed_.From(b_, Present(1, {Allreduce("x", {2}, {3, 5}, 4)}));
  bed_.From(a_, Join(0, 1, false));
  EXPECT_TRUE(a_.stand_ins.empty());  // rank 1 has not joined
  bed_.From(a_, Join(1, 1, false));
  ASSERT_EQ(a_.stand_ins.size(), 1u);
  const proto::StandIn& m = a_.stand_ins[0];
  EXPECT_EQ(a_.Last().epoch(), 1u);
  EXPECT_EQ(m.id(), 1u);
  EXPECT_EQ(m.identity().name(), "x");
  EXPECT_EQ(m.generation(), 4u);
  EXPECT_EQ(m.signature().dtype(), static_cast<uint32_t>(DType::kFloat32));
  EXPECT_EQ(m.signature().op(), static_cast<uint32_t>(Op::kSum));
  EXPECT_EQ(m.signature().prescale(), 1.0);
  EXPECT_THAT(m.signature().shape(), ElementsAre(3, 5));
  EXPECT_TRUE(b_.stand_ins.empty());
  EXPECT_TRUE(c_.stand_ins.empty());
  // The node's own report does not make others stand in again.
  auto aside = Allreduce("x", {0, 1}, {3, 5}, 4);
  aside.mutable_signatures(0)->set_aside(true);
  bed_.From(a_, Present(1, {aside}));
  bed_.From(c_, Present(1, {Allreduce("x", {3}, {3, 5}, 4)}));
  EXPECT_EQ(a_.runs.size(), 1u);
  EXPECT_EQ(a_.stand_ins.size(), 1u);
}

TEST_F(JoinsTest, AndForWhatComesLaterOncePerGeneration) {
  bed_.From(b_, Join(2, 1, false));
  for (uint32_t g = 1; g <= 2; ++g) {
    bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3}, g)}));
    ASSERT_EQ(b_.stand_ins.size(), g);
    EXPECT_EQ(b_.stand_ins[g - 1].generation(), g);
    bed_.From(c_, Present(1, {Allreduce("x", {3}, {3}, g)}));
    EXPECT_EQ(b_.stand_ins.size(), g);
    auto aside = Allreduce("x", {2}, {3}, g);
    aside.mutable_signatures(0)->set_aside(true);
    bed_.From(b_, Present(1, {aside}));
    EXPECT_EQ(a_.runs.size(), g);
  }
}

TEST_F(JoinsTest, TheSignatureIsThatOfRanksWithInputs) {
  auto on_a = Allgather("g", {0}, {0, 7}, 10);
  on_a.mutable_signatures(0)->set_aside(true);
  *on_a.add_signatures() = Allgather("g", {1}, {7}, 10).signatures(0);
  bed_.From(a_, Present(1, {on_a}));
  bed_.From(b_, Join(2, 1, false));
  ASSERT_EQ(b_.stand_ins.size(), 1u);
  EXPECT_FALSE(b_.stand_ins[0].signature().aside());
  EXPECT_THAT(b_.stand_ins[0].signature().shape(), ElementsAre(7, 10));
  EXPECT_THAT(b_.stand_ins[0].signature().ranks(), ElementsAre(1));
}

TEST_F(JoinsTest, OnlyForItsOwnSets) {
  for (const uint32_t rank : {0, 1}) bed_.From(a_, MakeSet(rank, 1, {1, 2}));
  bed_.From(b_, MakeSet(2, 1, {1, 2}));
  bed_.From(c_, MakeSet(3, 1, {1, 2}));
  bed_.From(c_, Join(3, 1, false));
  bed_.From(b_, Present(1, {In(1, Allreduce("x", {2}, {3}))}));
  EXPECT_TRUE(c_.stand_ins.empty());
  // Rank 1 is all that the set has on n0.
  bed_.From(a_, Join(1, 1, false));
  ASSERT_EQ(a_.stand_ins.size(), 1u);
  EXPECT_EQ(a_.stand_ins[0].identity().process_set(), 1u);
}

TEST_F(JoinsTest, EndsWhenAllHaveSettledNamingTheLastToBegin) {
  bed_.From(a_, Join(0, 1, false));
  bed_.From(a_, Join(0, 1, true));
  bed_.From(c_, Join(3, 1, false));
  bed_.From(b_, Join(2, 1, false));
  bed_.From(a_, Join(1, 1, false));
  bed_.From(a_, Join(1, 1, true));
  bed_.From(b_, Join(2, 1, true));
  EXPECT_TRUE(a_.join_replies.empty());
  bed_.From(c_, Join(3, 1, true));
  for (const Executor* e : {&a_, &b_, &c_}) {
    ASSERT_EQ(e->join_replies.size(), 1u);
    EXPECT_EQ(e->Last().epoch(), 1u);
    EXPECT_EQ(e->join_replies[0].number(), 1u);
    EXPECT_EQ(e->join_replies[0].last_rank(), 1);
    EXPECT_EQ(e->join_replies[0].code(), 0);
  }
  // Nobody stands aside any more; the next join has the next number.
  bed_.From(b_, Present(1, {Allreduce("x", {2}, {3})}));
  EXPECT_TRUE(a_.stand_ins.empty());
  bed_.From(a_, Join(0, 2, false));
  EXPECT_FALSE(a_.refused);
}

TEST_F(JoinsTest, ARankThatLeavesEndsItForAllWhoWait) {
  bed_.From(a_, Join(0, 1, false));
  bed_.From(b_, Gone(1, 2, true));
  for (const Executor* e : {&a_, &b_, &c_}) {
    ASSERT_EQ(e->join_replies.size(), 1u);
    EXPECT_EQ(e->join_replies[0].code(),
              static_cast<int>(absl::StatusCode::kAborted));
    EXPECT_EQ(e->join_replies[0].message(),
              "rank 2 (node n1) has shut down; join needs every rank");
  }
  // It crossed with the reply.
  bed_.From(a_, Join(0, 1, true));
  EXPECT_FALSE(a_.refused);
  EXPECT_EQ(a_.join_replies.size(), 1u);
  // A later rank is told alone.
  bed_.From(a_, Join(1, 1, false));
  EXPECT_EQ(a_.join_replies.size(), 2u);
  EXPECT_EQ(a_.join_replies[1].number(), 1u);
  EXPECT_EQ(c_.join_replies.size(), 1u);
}

TEST_F(JoinsTest, OutOfTurnIsABadMessage) {
  const std::vector<std::vector<proto::ExecutorMessage>> bad = {
      {Join(0, 2, false)},
      {Join(0, 1, true)},
      {Join(0, 1, false), Join(0, 1, false)},
      {Join(0, 1, false), Join(0, 1, true), Join(0, 1, true)},
      {Join(2, 1, false)},
      {Join(9, 1, false)},
  };
  for (const auto& messages : bad) {
    TestBed bed;
    Executor& a = bed.Connect("j", "n0");
    Executor& b = bed.Connect("j", "n1");
    bed.Ready(a, 3, {0, 1});
    bed.Ready(b, 3, {2});
    for (const auto& m : messages) {
      EXPECT_FALSE(a.refused);
      bed.From(a, m);
    }
    EXPECT_TRUE(a.refused);
  }
}

// Ranks with different numbers of inputs over overlapping sets, which join at
// random times; the executors do what is requested. Every submitted operation
// runs, every needed node whose ranks all stand aside is asked exactly once,
// and the join ends exactly when all ranks have settled.
class JoinSimulation {
 public:
  explicit JoinSimulation(uint64_t seed) : random_(seed) {}

  void Run() {
    Start();
    for (uint32_t join = 1; join <= 3; ++join) {
      Round(join);
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(bed_.core().totals().pending_operations, 0u);
  }

 private:
  using Key = std::pair<uint32_t, uint32_t>;  // set, generation
  struct Node {
    Executor* executor;
    Ranks ranks;
    size_t stood_in = 0;  // of executor->stand_ins
    size_t runs = 0;
    std::set<Key> reported;
    std::map<uint32_t, uint32_t> sets_of_ids;
  };
  struct Rank {
    std::map<uint32_t, uint32_t> left;  // by set: inputs
    std::map<uint32_t, uint32_t> at;    // by set: generation
    bool begun = false;
    bool settled = false;
  };

  uint64_t Pick(uint64_t n) { return random_() % n; }

  void Start() {
    uint32_t size = 0;
    nodes_.resize(3);
    for (size_t i = 0; i < 3; ++i) {
      nodes_[i].executor = &bed_.Connect("j", "n" + std::to_string(i));
      for (uint64_t k = 1 + Pick(2); k > 0; --k) {
        nodes_[i].ranks.push_back(size++);
      }
    }
    ranks_.resize(size);
    for (Node& n : nodes_) bed_.Ready(*n.executor, size, n.ranks);
    sets_[0] = {};
    for (uint32_t r = 0; r < size; ++r) sets_[0].push_back(r);
    // Of one rank on each of two nodes: overlapping, and not of whole nodes.
    AddSet(1, {nodes_[0].ranks.back(), nodes_[1].ranks.front()});
    AddSet(2, {nodes_[1].ranks.front(), nodes_[2].ranks.back()});
  }

  void AddSet(uint32_t id, Ranks ranks) {
    for (Node& n : nodes_) {
      for (const uint32_t r : n.ranks) {
        bed_.From(*n.executor, MakeSet(r, id, ranks));
      }
    }
    ASSERT_EQ(nodes_[0].executor->set_replies.back().process_set(), id);
    sets_[id] = std::move(ranks);
  }

  Ranks On(const Node& node, uint32_t set) const {
    Ranks out;
    for (const uint32_t r : node.ranks) {
      const Ranks& all = sets_.at(set);
      if (std::find(all.begin(), all.end(), r) != all.end()) out.push_back(r);
    }
    return out;
  }

  void Round(uint32_t join) {
    for (Rank& r : ranks_) r.begun = r.settled = false;
    // The same number for all its sets: a rank with fewer inputs than others in
    // one set and more in another would wait for them without having joined.
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      const uint32_t inputs = Pick(6);
      for (auto& [id, members] : sets_) {
        if (std::count(members.begin(), members.end(), r) > 0) {
          ranks_[r].left[id] = inputs;
        }
      }
    }
    for (int steps = 0; !Done(join); ++steps) {
      ASSERT_LT(steps, 100000) << Text();
      Step(join);
    }
    for (Node& n : nodes_) {
      ASSERT_EQ(n.executor->join_replies.size(), join);
      EXPECT_EQ(n.executor->join_replies.back().code(), 0);
      EXPECT_EQ(n.executor->join_replies.back().last_rank(),
                static_cast<int32_t>(last_));
      EXPECT_EQ(n.stood_in, n.executor->stand_ins.size());
      // Each once.
      std::set<Key> asked;
      for (const auto& s : n.executor->stand_ins) {
        EXPECT_TRUE(
            asked.emplace(s.identity().process_set(), s.generation()).second);
      }
    }
  }

  std::string Text() {
    std::string out = bed_.Status().ShortDebugString();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      out += "\nrank " + std::to_string(i) +
             (ranks_[i].settled ? " settled"
              : ranks_[i].begun ? " begun"
                                : "");
      for (const auto& [set, at] : ranks_[i].at) {
        out += " set " + std::to_string(set) + " at " + std::to_string(at) +
               " left " + std::to_string(ranks_[i].left[set]);
      }
    }
    return out;
  }

  bool Done(uint32_t join) {
    const bool all = std::all_of(ranks_.begin(), ranks_.end(),
                                 [](const Rank& r) { return r.settled; });
    EXPECT_EQ(nodes_[0].executor->join_replies.size(), all ? join : join - 1);
    return all;
  }

  void Step(uint32_t join) {
    Node& node = nodes_[Pick(nodes_.size())];
    if (Pick(4) == 0) bed_.Pass(std::chrono::milliseconds(6));
    TakeRuns(node);
    TakeStandIn(node);
    const uint32_t rank = node.ranks[Pick(node.ranks.size())];
    Rank& r = ranks_[rank];
    if (!r.begun) {
      Submit(node, rank);
    }
    if (!r.begun && NoInputs(r) && Pick(2) == 0) {
      r.begun = true;
      last_ = rank;
      bed_.From(*node.executor, Join(rank, join, false));
    }
    if (r.begun) CatchUp(node, rank);
    if (r.begun && !r.settled && AllRun(node, r)) {
      r.settled = true;
      bed_.From(*node.executor, Join(rank, join, true));
    }
  }

  static bool NoInputs(const Rank& r) {
    return std::all_of(r.left.begin(), r.left.end(),
                       [](const auto& l) { return l.second == 0; });
  }

  // The next generation of one of its sets, if the last has run.
  void Submit(Node& node, uint32_t rank) {
    Rank& r = ranks_[rank];
    for (auto& [set, left] : r.left) {
      if (left == 0 || !ran_[&node].contains({set, r.at[set]})) continue;
      if (Pick(2) == 0) continue;
      --left;
      Arrive(node, set, rank, r.at[set] + 1);
    }
  }

  void Arrive(Node& node, uint32_t set, uint32_t rank, uint32_t generation) {
    ranks_[rank].at[set] = generation;
    const Ranks here = On(node, set);
    for (const uint32_t other : here) {
      if (ranks_[other].at[set] < generation) return;
    }
    ASSERT_TRUE(node.reported.emplace(set, generation).second);
    proto::PresentOperation op = In(set, Allreduce("x", here, {3}, generation));
    op.mutable_signatures(0)->set_aside(ranks_[rank].begun);
    bed_.From(*node.executor, Present(1, {op}));
  }

  // What another rank of the node has arrived at.
  void CatchUp(Node& node, uint32_t rank) {
    for (auto& [set, at] : ranks_[rank].at) {
      for (const uint32_t other : On(node, set)) {
        if (ranks_[other].at[set] > at) Arrive(node, set, rank, at + 1);
      }
    }
  }

  void TakeStandIn(Node& node) {
    if (node.stood_in == node.executor->stand_ins.size()) return;
    const proto::StandIn s = node.executor->stand_ins[node.stood_in++];
    const uint32_t set = s.identity().process_set();
    for (const uint32_t rank : On(node, set)) {
      EXPECT_TRUE(ranks_[rank].begun);
      if (ranks_[rank].at[set] < s.generation()) {
        Arrive(node, set, rank, s.generation());
      }
    }
  }

  void TakeRuns(Node& node) {
    for (; node.runs < node.executor->runs.size(); ++node.runs) {
      for (const auto& op : node.executor->runs[node.runs].operations()) {
        if (op.has_identity()) {
          node.sets_of_ids[op.id()] = op.identity().process_set();
        }
        EXPECT_TRUE(ran_[&node]
                        .emplace(node.sets_of_ids.at(op.id()), op.generation())
                        .second);
      }
    }
    for (const auto& [set, members] : sets_) ran_[&node].emplace(set, 0);
  }

  bool AllRun(Node& node, const Rank& r) {
    return std::all_of(r.at.begin(), r.at.end(), [&](const auto& at) {
      return ran_[&node].contains({at.first, at.second});
    });
  }

  std::mt19937_64 random_;
  TestBed bed_;
  std::vector<Node> nodes_;
  std::vector<Rank> ranks_;
  std::map<uint32_t, Ranks> sets_;
  std::map<const Node*, std::set<Key>> ran_;
  uint32_t last_ = 0;
};

TEST(JoinsOrderTest, AllRunsWhateverTheOrderAndEndsWhenAllHaveSettled) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    JoinSimulation(seed).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace maypole::coordinator
