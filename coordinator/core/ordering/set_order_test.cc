// Property: with several overlapping process sets over three nodes and random
// orders of reports, all nodes get the runs that they have in common in the
// same order, each exactly once, numbered without gaps, and no runs of other
// nodes' sets.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/testing/testing.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using Key = std::tuple<uint32_t, std::string, uint32_t>;  // set, name, gen.
using Ranks = std::vector<uint32_t>;

class SetSimulation {
 public:
  explicit SetSimulation(uint64_t seed) : random_(seed), bed_(ConfigOf()) {}

  void Run() {
    Start();
    for (uint64_t n = 2 + Pick(4); n > 0; --n) AddSet();
    for (uint32_t g = 1; g <= 4; ++g) Round(g);
    for (size_t i = 0; i < nodes_.size(); ++i) CheckNode(i);
    CheckCommonOrder();
    EXPECT_EQ(bed_.core().totals().pending_operations, 0u);
  }

 private:
  struct Node {
    Executor* executor;
    Ranks ranks;
  };
  static Config ConfigOf() {
    Config config{.frozen_nodes = 0};
    config.fusion_threshold = 512;
    return config;
  }
  uint64_t Pick(uint64_t n) { return random_() % n; }

  void Start() {
    for (size_t i = 0; i < 3; ++i) {
      Node node;
      node.executor = &bed_.Connect("j", "n" + std::to_string(i));
      for (uint64_t k = 1 + Pick(3); k > 0; --k) node.ranks.push_back(size_++);
      std::shuffle(node.ranks.begin(), node.ranks.end(), random_);
      nodes_.push_back(node);
    }
    for (Node& n : nodes_) bed_.Ready(*n.executor, size_, n.ranks);
    Ranks all(size_);
    for (uint32_t r = 0; r < size_; ++r) all[r] = r;
    sets_[0] = all;
  }

  // Ranks ask in a random order; some of the sets are asked for twice.
  void AddSet() {
    Ranks ranks;
    for (uint32_t r = 0; r < size_; ++r) {
      if (Pick(2) == 0) ranks.push_back(r);
    }
    std::vector<std::pair<size_t, uint32_t>> order;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const uint32_t r : nodes_[i].ranks) order.emplace_back(i, r);
    }
    std::shuffle(order.begin(), order.end(), random_);
    ++number_;
    for (const auto& [node, rank] : order) {
      bed_.From(*nodes_[node].executor, MakeSet(rank, number_, ranks));
    }
    const proto::SetReply& reply = nodes_[0].executor->set_replies.back();
    for (const Node& n : nodes_) {
      ASSERT_EQ(n.executor->set_replies.size(), number_);
      EXPECT_EQ(n.executor->set_replies.back().SerializeAsString(),
                reply.SerializeAsString());
    }
    bool known = ranks.empty();
    for (const auto& [id, members] : sets_) known = known || members == ranks;
    EXPECT_EQ(reply.code() != 0, known) << reply.message();
    if (reply.code() == 0) sets_[reply.process_set()] = ranks;
  }

  Ranks On(const Node& node, const Ranks& set) const {
    Ranks out;
    for (const uint32_t r : node.ranks) {
      if (std::binary_search(set.begin(), set.end(), r)) out.push_back(r);
    }
    return out;
  }

  void Round(uint32_t generation) {
    std::vector<std::vector<proto::PresentOperation>> left(nodes_.size());
    size_t todo = 0;
    for (const auto& [id, members] : sets_) {
      for (int name = 0; name < 5; ++name) {
        const int64_t elements = 1 + 40 * (name % 2);
        for (size_t i = 0; i < nodes_.size(); ++i) {
          const Ranks here = On(nodes_[i], members);
          if (here.empty()) continue;
          left[i].push_back(In(id, Allreduce("t" + std::to_string(name), here,
                                             {elements}, generation)));
          ++todo;
        }
      }
    }
    for (auto& order : left) std::shuffle(order.begin(), order.end(), random_);
    while (todo > 0) {
      const size_t n = Pick(nodes_.size());
      std::vector<proto::PresentOperation> batch;
      for (uint64_t k = Pick(5); k > 0 && !left[n].empty(); --k) {
        batch.push_back(left[n].back());
        if (Pick(10) == 0) batch.back().set_urgency(1 + Pick(2));
        left[n].pop_back();
        --todo;
      }
      bed_.From(*nodes_[n].executor, Present(1, batch));
      if (Pick(5) == 0) bed_.Pass(std::chrono::milliseconds(Pick(4)));
    }
    bed_.Pass(Config().fusion_age);
  }

  // The identity of an operation, as it was sent to the node.
  Key KeyOf(std::map<uint32_t, proto::Identity>* known,
            const proto::RunOperation& op) {
    if (op.has_identity()) (*known)[op.id()] = op.identity();
    const proto::Identity& identity = known->at(op.id());
    return {identity.process_set(), identity.name(), op.generation()};
  }

  std::vector<Key> KeysOf(size_t node) {
    std::map<uint32_t, proto::Identity> known;
    std::vector<Key> keys;
    for (const proto::Run& run : nodes_[node].executor->runs) {
      for (const auto& op : run.operations()) {
        keys.push_back(KeyOf(&known, op));
        EXPECT_EQ(std::get<0>(keys.back()),
                  known.at(run.operations(0).id()).process_set());
      }
    }
    return keys;
  }

  void CheckNode(size_t node) {
    const auto& runs = nodes_[node].executor->runs;
    for (size_t i = 0; i < runs.size(); ++i) EXPECT_EQ(runs[i].run(), i + 1);
    std::set<Key> seen;
    for (const Key& key : KeysOf(node)) {
      EXPECT_TRUE(seen.insert(key).second);
      EXPECT_FALSE(On(nodes_[node], sets_.at(std::get<0>(key))).empty());
    }
    size_t expected = 0;
    for (const auto& [id, members] : sets_) {
      if (!On(nodes_[node], members).empty()) expected += 4 * 5;
    }
    EXPECT_EQ(seen.size(), expected);
  }

  void CheckCommonOrder() {
    for (size_t a = 0; a < nodes_.size(); ++a) {
      for (size_t b = a + 1; b < nodes_.size(); ++b) {
        std::vector<Key> on_a = KeysOf(a), on_b = KeysOf(b);
        auto lacks = [](const std::vector<Key>& keys) {
          return [set = std::set<Key>(keys.begin(), keys.end())](const Key& k) {
            return !set.contains(k);
          };
        };
        const auto not_a = lacks(on_a), not_b = lacks(on_b);
        std::erase_if(on_a, not_b);
        std::erase_if(on_b, not_a);
        EXPECT_EQ(on_a, on_b);
      }
    }
  }

  std::mt19937_64 random_;
  TestBed bed_;
  std::vector<Node> nodes_;
  uint32_t size_ = 0;
  uint32_t number_ = 0;
  std::map<uint32_t, Ranks> sets_;
};

TEST(SetOrderTest, CommonRunsHaveOneOrder) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SetSimulation(seed).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace maypole::coordinator
