// Property: for any order of reports, any operations in a step, any waits and
// any number of broken streams, all nodes get the same runs, with every
// operation exactly once, when its age has passed at the latest.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/limits.h"
#include "coordinator/core/testing/testing.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

constexpr uint64_t kThreshold = 1024;

// One job with random nodes that run `kRounds` steps of random operations; some
// of them mismatch. A third of the jobs leave some out of each step.
class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed), bed_(ConfigOf()) {}

  void Run() {
    Start();
    MakeOperations();
    dynamic_ = Pick(3) == 0;
    for (int round = 0; round < kRounds; ++round) {
      Round(round);
      if (::testing::Test::HasFailure()) return;
    }
    Check();
  }

 private:
  static constexpr int kRounds = 6;

  struct Planned {
    std::string name;
    int kind;  // 0: allreduce float32, 1: float64, 2: broadcast, 3: allgather
    int64_t elements;
    bool mismatch;            // node 0 submits another shape
    uint32_t generation = 0;  // the last one
  };
  struct Node {
    Executor* executor;
    std::vector<uint32_t> ranks;
    std::map<std::string, uint32_t> ids;  // as it was told
  };

  static Config ConfigOf() {
    Config config{.frozen_nodes = 0};
    config.fusion_threshold = kThreshold;
    return config;
  }
  uint64_t Pick(uint64_t n) { return random_() % n; }

  void Start() {
    const size_t nodes = 1 + Pick(4);
    uint32_t rank = 0;
    for (size_t i = 0; i < nodes; ++i) {
      Node node;
      node.executor = &bed_.Connect("j", "n" + std::to_string(i));
      for (uint64_t k = 1 + Pick(3); k > 0; --k) node.ranks.push_back(rank++);
      nodes_.push_back(node);
    }
    for (Node& n : nodes_) bed_.Ready(*n.executor, rank, n.ranks);
    for (Node& n : nodes_) ASSERT_TRUE(n.executor->Last().has_epoch_start());
  }

  void MakeOperations() {
    const size_t n = 1 + Pick(40);
    for (size_t i = 0; i < n; ++i) {
      planned_.push_back({"t" + std::to_string(i), static_cast<int>(Pick(4)),
                          static_cast<int64_t>(Pick(100)), Pick(8) == 0});
      if (nodes_.size() == 1) planned_.back().mismatch = false;
      if (planned_.back().kind == 3) planned_.back().mismatch = false;
    }
  }

  proto::PresentOperation Make(const Planned& p, size_t node,
                               uint32_t generation) {
    Node& n = nodes_[node];
    const int64_t elements = p.elements + (p.mismatch && node == 0 ? 1 : 0);
    proto::PresentOperation op;
    if (p.kind <= 1) {
      op = Allreduce(p.name, n.ranks, {elements});
      if (p.kind == 1) {
        op.mutable_signatures(0)->set_dtype(
            static_cast<uint32_t>(DType::kFloat64));
      }
    } else if (p.kind == 2) {
      op = Broadcast(p.name, n.ranks, {elements}, 0);
    } else {
      op = Allgather(p.name, n.ranks,
                     std::vector<int64_t>(n.ranks.size(), node + 1), elements);
    }
    op.set_generation(generation);
    auto id = n.ids.find(p.name);
    if (id != n.ids.end()) {
      op.set_id(id->second);
      op.clear_identity();
    }
    return op;
  }

  std::vector<size_t> Step(int round) {
    std::vector<size_t> step;
    for (size_t i = 0; i < planned_.size(); ++i) {
      if (round > 0 && dynamic_ && Pick(3) == 0) continue;
      step.push_back(i);
      ++planned_[i].generation;
    }
    return step;
  }

  // All nodes report the step's operations, in orders and batches of their own.
  void Round(int round) {
    const std::vector<size_t> step = Step(round);
    std::vector<std::vector<size_t>> left(nodes_.size(), step);
    for (auto& order : left) {
      std::shuffle(order.begin(), order.end(), random_);
    }
    size_t todo = nodes_.size() * step.size();
    while (todo > 0) {
      const size_t n = Pick(nodes_.size());
      MaybeBreak(n);
      std::vector<proto::PresentOperation> batch;
      for (uint64_t k = Pick(6); k > 0 && !left[n].empty(); --k) {
        const Planned& p = planned_[left[n].back()];
        batch.push_back(Make(p, n, p.generation));
        if (Pick(20) == 0) batch.back().set_urgency(1 + Pick(2));
        left[n].pop_back();
        --todo;
      }
      proto::ExecutorMessage message = Present(1, batch);
      if (round > 0 && Pick(4) == 0) AddUrgent(n, &message);
      bed_.From(*nodes_[n].executor, std::move(message));
      if (Pick(5) == 0) bed_.Pass(std::chrono::milliseconds(Pick(3)));
    }
    for (Node& n : nodes_) {
      if (n.executor->stream == 0) bed_.Resume(*n.executor);
    }
    bed_.Pass(Config().fusion_age);
    EXPECT_EQ(bed_.core().totals().pending_operations, 0u);
    for (Node& n : nodes_) LearnIds(n);
  }

  // A rank waits for any operation: pending, held, answered or not yet there.
  void AddUrgent(size_t n, proto::ExecutorMessage* message) {
    const Planned& p = planned_[Pick(planned_.size())];
    proto::UrgentOperation* op = message->mutable_presence()->add_urgent();
    op->set_id(nodes_[n].ids.at(p.name));
    op->set_generation(p.generation);
  }

  void MaybeBreak(size_t n) {
    Executor& e = *nodes_[n].executor;
    if (e.stream == 0) {
      if (Pick(2) == 0) bed_.Resume(e);
    } else if (Pick(10) == 0) {
      bed_.Break(e);
    }
  }

  void LearnIds(Node& n) {
    for (const proto::Run& run : n.executor->runs) {
      for (const auto& op : run.operations()) {
        if (op.has_identity()) n.ids[op.identity().name()] = op.id();
      }
    }
    for (const auto& f : n.executor->failures) {
      n.ids[f.identity().name()] = f.id();
    }
  }

  void Check() {
    const std::vector<proto::Run>& runs = nodes_[0].executor->runs;
    for (Node& n : nodes_) {
      ASSERT_FALSE(n.executor->refused);
      ASSERT_EQ(n.executor->runs.size(), runs.size());
      for (size_t i = 0; i < runs.size(); ++i) {
        EXPECT_EQ(n.executor->runs[i].SerializeAsString(),
                  runs[i].SerializeAsString());
      }
    }
    std::map<uint32_t, const Planned*> by_id;
    for (const Planned& p : planned_) by_id[nodes_[0].ids.at(p.name)] = &p;
    ASSERT_EQ(by_id.size(), planned_.size());
    std::set<std::pair<uint32_t, uint32_t>> seen;
    for (size_t i = 0; i < runs.size(); ++i) {
      EXPECT_EQ(runs[i].run(), i + 1);
      CheckRun(runs[i], by_id, &seen);
    }
    for (const Planned& p : planned_) CheckOutcome(p, seen);
    EXPECT_EQ(bed_.core().totals().pending_operations, 0u);
  }

  void CheckRun(const proto::Run& run,
                const std::map<uint32_t, const Planned*>& by_id,
                std::set<std::pair<uint32_t, uint32_t>>* seen) {
    uint64_t bytes = 0;
    ASSERT_GE(run.operations_size(), 1);
    ASSERT_LE(run.operations_size(), static_cast<int>(kMaxRunOperations));
    const int kind = by_id.at(run.operations(0).id())->kind;
    for (const auto& op : run.operations()) {
      const Planned& p = *by_id.at(op.id());
      EXPECT_TRUE(seen->emplace(op.id(), op.generation()).second);
      EXPECT_EQ(p.kind, kind);
      bytes += (p.elements * (p.kind == 1 ? 8 : 4) + 63) / 64 * 64;
    }
    EXPECT_TRUE(run.operations_size() == 1 || bytes <= kThreshold) << bytes;
    EXPECT_TRUE(kind != 3 || run.operations_size() == 1);
    EXPECT_EQ(run.first_dims_size() > 0, kind == 3);
  }

  void CheckOutcome(const Planned& p,
                    const std::set<std::pair<uint32_t, uint32_t>>& seen) {
    const uint32_t id = nodes_[0].ids.at(p.name);
    for (uint32_t g = 1; g <= p.generation; ++g) {
      EXPECT_EQ(seen.contains({id, g}), !p.mismatch) << p.name;
      for (Node& n : nodes_) {
        int failures = 0;
        for (const auto& f : n.executor->failures) {
          if (f.id() == id && f.generation() == g) ++failures;
        }
        EXPECT_EQ(failures, p.mismatch ? 1 : 0) << p.name;
      }
    }
  }

  std::mt19937_64 random_;
  TestBed bed_;
  std::vector<Node> nodes_;
  std::vector<Planned> planned_;
  bool dynamic_ = false;
};

TEST(OrderTest, AllNodesRunTheSameEachOperationOnce) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation(seed).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace maypole::coordinator
