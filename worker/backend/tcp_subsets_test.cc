// Chunks of all kinds that concern only some nodes, over real sockets.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/backend/testing/tcp_testing.h"

namespace maypole::worker {
namespace {

// One chunk of a program that all nodes know: floats, or ints for a max.
struct Step {
  enum Way { kReduce, kMax, kScatter, kGather, kAlltoall };
  Way way = kReduce;
  std::vector<uint32_t> nodes;
  size_t elements = 0;
  size_t number = 0;

  bool Has(uint32_t node) const {
    return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
  }
  // What `node` brings at index i.
  float Input(uint32_t node, size_t i) const {
    const auto n = static_cast<float>(nodes.size());
    const float value = static_cast<float>((i * 7 + number) % 13) +
                        static_cast<float>(node) * (way == kMax ? 100 : 1);
    return way == kScatter ? value * n : value;
  }
  // Equal parts by place in `nodes`, gaps of one element between them.
  std::vector<Segment> Segments() const {
    std::vector<Segment> out;
    const size_t n = nodes.size();
    if (way == kScatter || way == kGather) {
      const size_t each = elements / n;
      for (size_t i = 0; i < n && each > 1; ++i) {
        Segment s{nodes[i], kEveryNode, i * each * 4, (each - 1) * 4};
        if (way == kScatter) s = {0, nodes[i], s.offset, s.bytes};
        out.push_back(s);
      }
    } else if (way == kAlltoall) {
      const size_t each = elements / (n * n);
      for (size_t i = 0; i < n * n && each > 0; ++i) {
        if (i / n == i % n) continue;
        out.push_back({nodes[i / n], nodes[i % n], i * each * 4, each * 4});
      }
    }
    return out;
  }
  Work WorkFor(std::vector<float>& chunk) const {
    Work w;
    w.chunk = std::as_writable_bytes(std::span(chunk));
    w.reduces = way <= kScatter;
    w.scatters = way == kScatter;
    w.op = way == kMax ? Op::kMax : Op::kSum;
    w.dtype = DType::kFloat32;
    w.nodes = nodes;
    w.segments = Segments();
    if (way == kScatter) w.finish.divisor = static_cast<int64_t>(nodes.size());
    return w;
  }
  float Reduced(size_t i) const {
    float out = Input(nodes[0], i);
    for (size_t k = 1; k < nodes.size(); ++k) {
      const float in = Input(nodes[k], i);
      out = way == kMax ? std::max(out, in) : out + in;
    }
    return way == kScatter ? out / static_cast<float>(nodes.size()) : out;
  }
  void Check(uint32_t node, const std::vector<float>& chunk) const {
    if (way == kReduce || way == kMax) {
      for (size_t i = 0; i < chunk.size(); ++i) {
        ASSERT_EQ(chunk[i], Reduced(i)) << "chunk " << number << " at " << i;
      }
      return;
    }
    for (const Segment& s : Segments()) {
      if (s.to != node && s.to != kEveryNode) continue;
      for (size_t i = s.offset / 4; i < (s.offset + s.bytes) / 4; ++i) {
        const float want = way == kScatter ? Reduced(i) : Input(s.from, i);
        ASSERT_EQ(chunk[i], want) << "chunk " << number << " at " << i;
      }
    }
  }
};

// Chunks of two nodes or more each, in one order for all.
std::vector<Step> MakeProgram(uint32_t nodes, size_t chunks, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Step> program;
  while (program.size() < chunks) {
    Step step;
    for (uint32_t i = 0; i < nodes; ++i) {
      if (random() % 2 == 0) step.nodes.push_back(i);
    }
    if (step.nodes.size() < 2) continue;
    step.way = static_cast<Step::Way>(random() % 5);
    step.elements = random() % 3 == 0 ? random() % 100 : random() % 50000;
    step.number = program.size();
    program.push_back(step);
  }
  return program;
}

// With this number of nodes, over each kind of wire.
class TcpSubsetsTest
    : public testing::TestWithParam<std::tuple<uint32_t, Wire>> {
 protected:
  static uint32_t size() { return std::get<0>(GetParam()); }
  static TcpBackendOptions Options(uint32_t connections = 1) {
    return OptionsFor(std::get<1>(GetParam()), connections);
  }
};

// Each node at its own pace, up to 8 chunks in flight.
TEST_P(TcpSubsetsTest, OverlappingSetsOfNodesInterleaved) {
  constexpr size_t kAtOnce = 8;
  for (const uint32_t connections : {1u, 2u}) {
    SCOPED_TRACE(testing::Message() << "seed " << connections);
    const std::vector<Step> program = MakeProgram(size(), 400, connections);
    Nodes nodes(size(), Options(connections));
    nodes.Connect();
    nodes.Together([&](uint32_t node) {
      std::vector<std::vector<float>> chunks;
      std::vector<const Step*> mine;
      for (const Step& step : program) {
        if (step.Has(node)) mine.push_back(&step);
      }
      chunks.resize(mine.size());
      for (size_t c = 0; c < mine.size(); ++c) {
        if (c >= kAtOnce) {
          const absl::Status s = nodes.ended(node)[c - kAtOnce];
          ASSERT_TRUE(s.ok()) << s;
        }
        chunks[c].resize(mine[c]->elements);
        for (size_t i = 0; i < chunks[c].size(); ++i) {
          chunks[c][i] = mine[c]->Input(node, i);
        }
        nodes[node].Start(mine[c]->WorkFor(chunks[c]));
      }
      for (size_t c = 0; c < mine.size(); ++c) {
        const absl::Status s = nodes.ended(node)[c];
        ASSERT_TRUE(s.ok()) << s;
        mine[c]->Check(node, chunks[c]);
      }
    });
  }
}

TEST_P(TcpSubsetsTest, OnlyTheNodesOfAChunkSendAnything) {
  Nodes nodes(size(), Options());
  nodes.Connect();
  // A scatter moves each part once to its node, nothing goes back.
  Step step{Step::kScatter, {0, 2}, 2000, 0};
  nodes.Together([&](uint32_t node) {
    if (!step.Has(node)) return;
    std::vector<float> chunk(step.elements);
    for (size_t i = 0; i < chunk.size(); ++i) chunk[i] = step.Input(node, i);
    const absl::Status s = nodes.Do(node, step.WorkFor(chunk));
    ASSERT_TRUE(s.ok()) << s;
    step.Check(node, chunk);
  });
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    EXPECT_EQ(nodes[i].bytes_sent(), step.Has(i) ? 999 * 4 : 0u) << i;
    EXPECT_EQ(nodes[i].bytes_received(), step.Has(i) ? 999 * 4 : 0u) << i;
  }
}

TEST_P(TcpSubsetsTest, ALateNodeHoldsUpNobodyElse) {
  Nodes nodes(size(), Options());
  nodes.Connect();
  std::vector<float> late(100000, 1.0f);
  std::vector<float> a(100000, 1.0f);
  std::vector<float> b(100000, 2.0f);
  // Node 0 waits for node 2; its earlier chunks with node 1 proceed.
  const auto work = [](std::vector<float>& chunk, std::vector<uint32_t> nodes) {
    Work w = Reduction(chunk);
    w.nodes = std::move(nodes);
    return w;
  };
  nodes[0].Start(work(a, {0, 1}));
  nodes[0].Start(work(late, {0, 2}));
  EXPECT_TRUE(nodes.Do(1, work(b, {0, 1})).ok());
  EXPECT_TRUE(nodes.ended(0)[0].ok());
  EXPECT_EQ(a[0], 3.0f);
  EXPECT_EQ(b[99999], 3.0f);
  EXPECT_EQ(nodes.ended(0).size(), 1u);
  std::vector<float> c(100000, 4.0f);
  EXPECT_TRUE(nodes.Do(2, work(c, {0, 2})).ok());
  EXPECT_TRUE(nodes.ended(0)[1].ok());
  EXPECT_EQ(late[7], 5.0f);
}

TEST_P(TcpSubsetsTest, AbortEndsChunksOfAllSets) {
  for (int round = 0; round < 10; ++round) {
    Nodes nodes(size(), Options());
    nodes.Connect();
    std::vector<std::vector<float>> chunks(6, std::vector<float>(50000, 1.0f));
    for (size_t c = 0; c < chunks.size(); ++c) {
      Step step{static_cast<Step::Way>(c % 5),
                {0, 1 + static_cast<uint32_t>(c) % (size() - 1)},
                50000,
                c};
      nodes[0].Start(step.WorkFor(chunks[c]));
    }
    nodes[0].Abort();
    for (size_t c = 0; c < chunks.size(); ++c) {
      EXPECT_EQ(nodes.ended(0)[c].code(), absl::StatusCode::kAborted);
      std::fill(chunks[c].begin(), chunks[c].end(), 7.0f);
    }
    for (uint32_t i = 1; i < nodes.size(); ++i) nodes.Drop(i);
    for (const auto& chunk : chunks) {
      for (const float v : chunk) ASSERT_EQ(v, 7.0f);
    }
  }
}

// Then the epoch is over for all nodes, even if no chunk needs the dead one.
TEST_P(TcpSubsetsTest, ADeadNodeIsNamedEvenByThoseWhoDoNotNeedItNow) {
  std::vector<float> chunk(1 << 20, 1.0f);
  Nodes nodes(size(), Options());
  nodes.Connect();
  Work work = Reduction(chunk);
  work.nodes = {0, 1};
  nodes[0].Start(std::move(work));
  nodes[2].Abort();
  const absl::Status s = nodes.ended(0)[0];
  EXPECT_EQ(s.code(), absl::StatusCode::kUnavailable) << s;
  EXPECT_NE(s.message().find("node n2 (host c)"), std::string::npos) << s;
}

INSTANTIATE_TEST_SUITE_P(Sizes, TcpSubsetsTest,
                         testing::Combine(testing::Values(3u, 4u),
                                          testing::ValuesIn(Wires())),
                         [](const auto& mode) {
                           return std::to_string(std::get<0>(mode.param)) +
                                  Name(std::get<1>(mode.param));
                         });

}  // namespace
}  // namespace maypole::worker
