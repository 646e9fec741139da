#include "worker/backend/exchange_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace maypole::worker {
namespace {

using Bytes = std::vector<uint8_t>;

// A node that goes through its plan; sums are those of bytes, modulo 256.
struct Node {
  uint32_t self = 0;
  Bytes chunk;
  ExchangePlan plan;
  Bytes inbox;
  size_t stage = 0;
  bool has_sent = false;
  uint64_t finished = 0;  // bytes to which `Work.finish` was applied

  bool done() const { return stage == plan.stages.size(); }
};

// Nodes whose messages travel in order between two of them, and else in any.
class Cluster {
 public:
  Cluster(std::vector<uint32_t> nodes, uint32_t seed)
      : nodes_(std::move(nodes)), random_(seed) {}

  void Add(uint32_t self, Bytes chunk, Work work,
           const std::vector<Level>& levels = {}) {
    Node& n = all_.emplace_back();
    n.self = self;
    n.chunk = std::move(chunk);
    work.chunk = std::as_writable_bytes(std::span(n.chunk));
    work.nodes = nodes_;
    n.plan = PlanFor(work, self, levels);
    n.inbox.resize(n.plan.inbox_bytes);
  }

  // Moves a random node as long as one can move.
  void Run() {
    for (int idle = 0; idle < 1000;) {
      Node& n = all_[random_() % all_.size()];
      idle = Move(n) ? 0 : idle + 1;
    }
    for (const Node& n : all_) ASSERT_TRUE(n.done()) << "node " << n.self;
    for (const auto& [pair, messages] : wire_) ASSERT_TRUE(messages.empty());
  }

  const Node& operator[](size_t i) const { return all_[i]; }
  size_t size() const { return all_.size(); }

 private:
  bool Move(Node& n) {
    if (n.done()) return false;
    const Stage& s = n.plan.stages[n.stage];
    if (!n.has_sent) {
      for (const Transfer& t : s.sends) {
        const auto from = n.chunk.begin() + static_cast<ptrdiff_t>(t.offset);
        wire_[{n.self, t.node}].emplace_back(
            from, from + static_cast<ptrdiff_t>(t.bytes));
      }
      n.has_sent = true;
      return true;
    }
    std::map<uint32_t, size_t> wanted;
    for (const Transfer& t : s.receives) ++wanted[t.node];
    for (const auto& [node, count] : wanted) {
      if (wire_[{node, n.self}].size() < count) return false;
    }
    for (const Transfer& t : s.receives) {
      auto& messages = wire_[{t.node, n.self}];
      EXPECT_EQ(messages.front().size(), t.bytes);
      std::copy(messages.front().begin(), messages.front().end(),
                (s.reduces ? n.inbox : n.chunk).begin() +
                    static_cast<ptrdiff_t>(t.offset));
      messages.pop_front();
    }
    for (const Stage::Reduction& r : s.reductions) {
      for (const uint64_t input : r.inputs) {
        for (uint64_t i = 0; i < r.bytes; ++i) {
          n.chunk[r.output + i] =
              static_cast<uint8_t>(n.chunk[r.output + i] + n.inbox[input + i]);
        }
      }
      EXPECT_LE(r.place, r.inputs.size());
      if (r.last) n.finished += r.bytes;
    }
    ++n.stage;
    n.has_sent = false;
    return true;
  }

  const std::vector<uint32_t> nodes_;
  std::mt19937 random_;
  std::deque<Node> all_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<Bytes>> wire_;
};

std::vector<uint32_t> SomeNodes(std::mt19937& random) {
  std::set<uint32_t> nodes;
  const size_t count = 1 + random() % 9;
  while (nodes.size() < count) nodes.insert(random() % 20);
  return {nodes.begin(), nodes.end()};
}

Bytes RandomBytes(std::mt19937& random, size_t size) {
  Bytes bytes(size);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  return bytes;
}

// Adds the nodes with random chunks; returns the sum of those.
Bytes AddReducing(Cluster& cluster, const std::vector<uint32_t>& nodes,
                  std::mt19937& random, size_t size, const Work& work,
                  const std::vector<Level>& levels = {}) {
  Bytes sum(size);
  for (const uint32_t node : nodes) {
    const Bytes chunk = RandomBytes(random, size);
    for (size_t i = 0; i < size; ++i) {
      sum[i] = static_cast<uint8_t>(sum[i] + chunk[i]);
    }
    cluster.Add(node, chunk, work, levels);
  }
  return sum;
}

TEST(ExchangePlan, AReductionGivesTheSumToAllInAnyOrder) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const std::vector<uint32_t> nodes = SomeNodes(random);
    const size_t size = random() % 3000;
    Cluster cluster(nodes, seed);
    const Bytes sum =
        AddReducing(cluster, nodes, random, size, {.reduces = true});
    cluster.Run();
    for (size_t i = 0; i < cluster.size(); ++i) {
      ASSERT_EQ(cluster[i].chunk, sum) << "seed " << seed;
    }
  }
}

// Draws levels of `nodes` nodes.
std::vector<Level> SomeLevels(std::mt19937& random, uint32_t nodes) {
  std::vector<Level> levels;
  bool exchanges_all = false;
  while (nodes > 1) {
    uint32_t f = 2 + random() % (nodes - 1);
    while (nodes % f != 0) f = 2 + random() % (nodes - 1);
    exchanges_all = exchanges_all || random() % 3 == 0;
    levels.push_back({f, exchanges_all});
    nodes /= f;
  }
  return levels;
}

TEST(ExchangePlan, ReductionsInLevelsGiveTheSumToAllInAnyOrder) {
  constexpr uint32_t kCounts[] = {2, 3, 4, 6, 8, 12, 16, 24, 30};
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<uint32_t> nodes(kCounts[random() % std::size(kCounts)]);
    for (uint32_t i = 0; i < nodes.size(); ++i) nodes[i] = 5 + 3 * i;
    const auto levels = SomeLevels(random, static_cast<uint32_t>(nodes.size()));
    const size_t size = random() % 9000;
    Cluster cluster(nodes, seed);
    const Bytes sum =
        AddReducing(cluster, nodes, random, size, {.reduces = true}, levels);
    cluster.Run();
    uint64_t finished = 0;
    for (size_t i = 0; i < cluster.size(); ++i) {
      ASSERT_EQ(cluster[i].chunk, sum) << "seed " << seed;
      finished += cluster[i].finished;
    }
    // Each byte once on the way to each node that reduces it last.
    uint64_t copies = 1;
    for (const Level& l : levels) copies *= l.exchanges_all ? l.nodes : 1;
    ASSERT_EQ(finished, size * copies) << "seed " << seed;
  }
}

// As TcpBackend::Flight has two slots for each chunk of two nodes.
TEST(ExchangePlan, TwoNodesMeetInOneLevelOnly) {
  Bytes bytes(4096);
  Work work{.chunk = std::as_writable_bytes(std::span(bytes)), .reduces = true};
  for (uint32_t i = 0; i < 24; ++i) work.nodes.push_back(i);
  const ExchangePlan plan = PlanFor(work, 5, {{2}, {3}, {2, true}, {2, true}});
  ASSERT_EQ(plan.stages.size(), 6u);
  std::map<uint32_t, std::vector<size_t>> stages;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (const Transfer& t : plan.stages[s].sends) stages[t.node].push_back(s);
  }
  const std::map<uint32_t, std::vector<size_t>> expected = {
      {4, {0, 5}},  // 5 = 1 + 2 * 2 + 0 * 6 + 0 * 12
      {1, {1, 4}},
      {3, {1, 4}},
      {11, {2}},
      {17, {3}}};
  EXPECT_EQ(stages, expected);
}

TEST(ExchangePlan, AScatterGivesEachNodeItsSegments) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const std::vector<uint32_t> nodes = SomeNodes(random);
    std::vector<Segment> segments;
    uint64_t size = 0;
    for (size_t left = random() % 20; left > 0; --left) {
      const uint64_t bytes = random() % 100;
      segments.push_back({0, nodes[random() % nodes.size()], size, bytes});
      size += bytes + random() % 3;
    }
    Cluster cluster(nodes, seed);
    const Bytes sum =
        AddReducing(cluster, nodes, random, size,
                    {.reduces = true, .scatters = true, .segments = segments});
    cluster.Run();
    for (size_t i = 0; i < cluster.size(); ++i) {
      for (const Segment& s : segments) {
        if (s.to != nodes[i]) continue;
        for (uint64_t b = s.offset; b < s.offset + s.bytes; ++b) {
          ASSERT_EQ(cluster[i].chunk[b], sum[b]) << "seed " << seed;
        }
      }
    }
  }
}

TEST(ExchangePlan, AnExchangeGivesEverySegmentToWhomItIsFor) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const std::vector<uint32_t> nodes = SomeNodes(random);
    const auto some = [&] { return nodes[random() % nodes.size()]; };
    std::vector<Segment> segments;
    uint64_t size = 0;
    for (size_t left = random() % 20; left > 0; --left) {
      const uint64_t bytes = random() % 100;
      segments.push_back(
          {some(), random() % 2 == 0 ? kEveryNode : some(), size, bytes});
      size += bytes;
    }
    Cluster cluster(nodes, seed);
    std::map<uint32_t, Bytes> chunks;
    for (const uint32_t node : nodes) {
      chunks[node] = RandomBytes(random, size);
      cluster.Add(node, chunks[node], {.segments = segments});
    }
    cluster.Run();
    for (size_t i = 0; i < cluster.size(); ++i) {
      Bytes want = chunks[nodes[i]];
      for (const Segment& s : segments) {
        if (s.to != kEveryNode && s.to != nodes[i]) continue;
        const auto from = static_cast<ptrdiff_t>(s.offset);
        const Bytes& theirs = chunks[s.from];
        std::copy(theirs.begin() + from,
                  theirs.begin() + from + static_cast<ptrdiff_t>(s.bytes),
                  want.begin() + from);
      }
      ASSERT_EQ(cluster[i].chunk, want) << "seed " << seed;
    }
  }
}

TEST(ExchangePlan, EachNodeReducesOneSegmentAndBeginsWithAnotherPeer) {
  Bytes bytes(4096);
  Work work{.chunk = std::as_writable_bytes(std::span(bytes)),
            .reduces = true,
            .nodes = {0, 1, 2, 3}};
  std::set<uint32_t> first;
  for (const uint32_t node : work.nodes) {
    const ExchangePlan plan = PlanFor(work, node);
    ASSERT_EQ(plan.stages.size(), 2u);
    const Stage& scatter = plan.stages[0];
    ASSERT_EQ(scatter.reductions.size(), 1u);
    EXPECT_EQ(scatter.reductions[0].output, 1024 * node);
    EXPECT_EQ(scatter.reductions[0].bytes, 1024u);
    EXPECT_EQ(scatter.reductions[0].place, node);
    EXPECT_EQ(plan.inbox_bytes, 3 * 1024u);
    first.insert(scatter.sends[0].node);
  }
  EXPECT_EQ(first.size(), 4u);
}

}  // namespace
}  // namespace maypole::worker
