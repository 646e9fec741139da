#include "worker/backend/tcp_backend.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <tuple>

#include "worker/backend/authenticated_listener.h"
#include "worker/backend/link_probe.h"
#include "worker/backend/testing/tcp_testing.h"

namespace maypole::worker {
namespace {

double Load(DType dtype, const std::byte* p) {
  const auto as = [p](auto v) {
    std::memcpy(&v, p, sizeof(v));
    return v;
  };
  switch (dtype) {
    case DType::kUint8:
      return as(uint8_t{});
    case DType::kInt8:
      return as(int8_t{});
    case DType::kUint16:
      return as(uint16_t{});
    case DType::kInt16:
      return as(int16_t{});
    case DType::kInt32:
      return as(int32_t{});
    case DType::kInt64:
      return static_cast<double>(as(int64_t{}));
    case DType::kFloat16:
      return HalfToFloat(as(uint16_t{}));
    case DType::kBfloat16:
      return Bfloat16ToFloat(as(uint16_t{}));
    case DType::kFloat32:
      return as(float{});
    case DType::kFloat64:
      return as(double{});
    case DType::kBool:
      return as(uint8_t{});
  }
  return -1;
}

void Store(DType dtype, std::byte* p, int value) {
  const auto as = [p](auto v) { std::memcpy(p, &v, sizeof(v)); };
  switch (dtype) {
    case DType::kUint8:
      return as(static_cast<uint8_t>(value));
    case DType::kInt8:
      return as(static_cast<int8_t>(value));
    case DType::kUint16:
      return as(static_cast<uint16_t>(value));
    case DType::kInt16:
      return as(static_cast<int16_t>(value));
    case DType::kInt32:
      return as(value);
    case DType::kInt64:
      return as(int64_t{value});
    case DType::kFloat16:
      return as(FloatToHalf(static_cast<float>(value)));
    case DType::kBfloat16:
      return as(FloatToBfloat16(static_cast<float>(value)));
    case DType::kFloat32:
      return as(static_cast<float>(value));
    case DType::kFloat64:
      return as(static_cast<double>(value));
    case DType::kBool:
      return as(static_cast<uint8_t>(value));
  }
}

// With this number of nodes, over each kind of wire.
class TcpBackendTest
    : public testing::TestWithParam<std::tuple<uint32_t, Wire>> {
 protected:
  static uint32_t size() { return std::get<0>(GetParam()); }
  static TcpBackendOptions Options(uint32_t connections = 1) {
    return OptionsFor(std::get<1>(GetParam()), connections);
  }
};

TEST_P(TcpBackendTest, AllreduceSumsEveryDtypeAndSize) {
  Nodes nodes(size(), Options());
  nodes.Connect();
  for (int d = 0; d < kDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    if (dtype == DType::kBool) continue;
    for (const size_t elements : {1u, 3u, 16u, 1000u, 40001u}) {
      const size_t width = SizeOf(dtype);
      nodes.Together([&](uint32_t node) {
        std::vector<std::byte> chunk(elements * width);
        for (size_t i = 0; i < elements; ++i) {
          Store(dtype, &chunk[i * width], static_cast<int>(i % 7 + node));
        }
        const absl::Status s = nodes.Do(node, Reduction(chunk, dtype));
        ASSERT_TRUE(s.ok()) << s;
        const int n = static_cast<int>(size());
        for (size_t i = 0; i < elements; ++i) {
          const double want = static_cast<int>(i % 7) * n + n * (n - 1) / 2;
          ASSERT_EQ(Load(dtype, &chunk[i * width]), want)
              << Name(dtype) << " element " << i << " of " << elements;
        }
      });
    }
  }
}

TEST_P(TcpBackendTest, AllreduceFinishesOnce) {
  Nodes nodes(size(), Options());
  nodes.Connect();
  nodes.Together([&](uint32_t node) {
    std::vector<float> chunk(1000, static_cast<float>(node + 1));
    const absl::Status s =
        nodes.Do(node, Reduction(chunk, {.divisor = 2, .scale = 3.0}));
    ASSERT_TRUE(s.ok()) << s;
    const float n = static_cast<float>(size());
    for (float v : chunk) ASSERT_EQ(v, n * (n + 1) / 2 / 2 * 3);
  });
  // Each node's contribution to others' segments, and its sums to each.
  uint64_t sent = 0;
  uint64_t received = 0;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    sent += nodes[i].bytes_sent();
    received += nodes[i].bytes_received();
  }
  EXPECT_EQ(sent, 2 * (size() - 1) * 4000u);
  EXPECT_EQ(received, sent);
}

TEST_P(TcpBackendTest, ExchangeGivesEverySegmentToAll) {
  Nodes nodes(size(), Options());
  nodes.Connect();
  // Node i owns bytes [i*10, i*10+7) and one byte at 40+i; no node owns the
  // rest.
  std::vector<Segment> segments;
  for (uint32_t i = 0; i < size(); ++i)
    segments.push_back({i, kEveryNode, i * 10, 7});
  for (uint32_t i = 0; i < size(); ++i)
    segments.push_back({i, kEveryNode, 40 + i, 1});
  nodes.Together([&](uint32_t node) {
    std::vector<uint8_t> chunk(64, 200);
    for (int i = 0; i < 7; ++i) {
      chunk[node * 10 + i] = static_cast<uint8_t>(node * 10 + i);
    }
    chunk[40 + node] = static_cast<uint8_t>(node);
    const absl::Status s =
        nodes.Do(node, {.chunk = std::as_writable_bytes(std::span(chunk)),
                        .segments = segments});
    ASSERT_TRUE(s.ok()) << s;
    for (uint32_t i = 0; i < size(); ++i) {
      for (uint32_t j = 0; j < 7; ++j) ASSERT_EQ(chunk[i * 10 + j], i * 10 + j);
      ASSERT_EQ(chunk[40 + i], i);
    }
    ASSERT_EQ(chunk[63], 200);
  });
}

TEST_P(TcpBackendTest, AbortEndsAWaitForALatePeer) {
  Nodes nodes(size(), Options());
  nodes.Connect();
  absl::Status status;
  std::vector<float> chunk(100000, 1.0f);
  std::thread waiter([&] { status = nodes.Do(0, Reduction(chunk)); });
  nodes[0].Abort();  // before, while or after it begins to wait
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_EQ(nodes.Do(0, Work{}).code(), absl::StatusCode::kAborted);
}

TEST_P(TcpBackendTest, ALostPeerIsNamed) {
  Nodes nodes(size(), Options());
  nodes.Connect();
  absl::Status status;
  std::vector<float> chunk(100000, 1.0f);
  std::thread waiter([&] { status = nodes.Do(0, Reduction(chunk)); });
  for (uint32_t i = 1; i < size(); ++i) nodes[i].Abort();
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find("node n1 (host b)"), std::string::npos)
      << status;
}

TEST_P(TcpBackendTest, ALostPeerIsNamedWithoutAChunkInFlight) {
  Nodes nodes(size(), Options());
  nodes.Connect();
  EXPECT_TRUE(nodes[0].status().ok()) << nodes[0].status();
  nodes[1].Abort();
  EXPECT_EQ(nodes[1].status().code(), absl::StatusCode::kAborted);
  while (nodes[0].status().ok()) std::this_thread::yield();
  EXPECT_EQ(
      nodes[0].status().message(),
      "the connection to node n1 (host b) failed: the peer has closed it");
}

// Chunks of many sizes and both kinds, up to 8 in flight, each node at its own
// pace; over one connection and over several.
TEST_P(TcpBackendTest, ManyChunksOnTheirWay) {
  constexpr size_t kChunks = 200;
  constexpr size_t kAtOnce = 8;
  for (const uint32_t connections : {1u, 3u}) {
    Nodes nodes(size(), Options(connections));
    nodes.Connect();
    std::vector<std::vector<float>> results(nodes.size());
    nodes.Together([&](uint32_t node) {
      const uint32_t n = size();
      std::vector<std::vector<float>> chunks(kChunks);
      for (size_t c = 0; c < kChunks; ++c) {
        if (c >= kAtOnce) {
          const absl::Status s = nodes.ended(node)[c - kAtOnce];
          ASSERT_TRUE(s.ok()) << s;
        }
        const size_t elements = 1 + c * 7919 % 60000;
        chunks[c].assign(elements, 0.1f * static_cast<float>(node + c));
        if (c % 5 != 4) {
          nodes[node].Start(Reduction(chunks[c]));
          continue;
        }
        // Equal parts; no node owns the remainder.
        const uint64_t each = elements / n * sizeof(float);
        Work work{.chunk = std::as_writable_bytes(std::span(chunks[c]))};
        for (uint32_t i = 0; i < n; ++i) {
          work.segments.push_back({i, kEveryNode, i * each, each});
        }
        nodes[node].Start(std::move(work));
      }
      for (size_t c = 0; c < kChunks; ++c) {
        const absl::Status s = nodes.ended(node)[c];
        ASSERT_TRUE(s.ok()) << s;
        const std::vector<float>& chunk = chunks[c];
        float sum = 0.1f * static_cast<float>(c);
        for (uint32_t i = 1; i < n; ++i) {
          sum += 0.1f * static_cast<float>(i + c);
        }
        for (size_t i = 0; i < chunk.size(); ++i) {
          const size_t each = chunk.size() / n;
          float want = sum;
          if (c % 5 == 4) {
            const size_t from = i < each * n ? i / each : node;
            want = 0.1f * static_cast<float>(from + c);
          }
          ASSERT_EQ(chunk[i], want) << "chunk " << c << " element " << i;
        }
      }
    });
    EXPECT_EQ(nodes[0].bytes_sent() > 0, true);
  }
}

// If a peer does not take part, chunks stay in flight. An abort ends all of
// them, in order, and afterwards their memory is not accessed.
TEST_P(TcpBackendTest, AbortEndsAllChunksOnTheirWay) {
  for (int round = 0; round < 20; ++round) {
    Nodes nodes(size(), Options());
    nodes.Connect();
    const size_t both = static_cast<size_t>(round % 4);
    std::vector<std::vector<float>> chunks(8 * size(),
                                           std::vector<float>(100000, 1.0f));
    nodes.Together([&](uint32_t node) {
      const size_t count = node == 0 ? 8 : both;
      for (size_t c = 0; c < count; ++c) {
        nodes[node].Start(Reduction(chunks[8 * node + c]));
      }
    });
    if (round % 2 == 0 && both > 0) {
      EXPECT_TRUE(nodes.ended(0)[both - 1].ok());
    }
    nodes[0].Abort();
    EXPECT_EQ(nodes.ended(0)[7].code(), absl::StatusCode::kAborted);
    for (size_t c = both; c < 8; ++c) {
      EXPECT_EQ(nodes.ended(0)[c].code(), absl::StatusCode::kAborted);
      std::fill(chunks[c].begin(), chunks[c].end(), 7.0f);
    }
    for (uint32_t i = 1; i < nodes.size(); ++i) nodes.Drop(i);
    for (size_t c = both; c < 8; ++c) {
      for (const float v : chunks[c]) ASSERT_EQ(v, 7.0f);
    }
  }
}

// A peer disconnects within messages.
TEST_P(TcpBackendTest, APeerThatDiesInFlightEndsAllChunks) {
  for (int round = 0; round < 10; ++round) {
    // Outlives the backends: node 1's chunks are in flight to the end.
    std::vector<std::vector<float>> chunks(16,
                                           std::vector<float>(1 << 20, 1.0f));
    Nodes nodes(size(), Options());
    nodes.Connect();
    for (size_t c = 0; c < 8; ++c) nodes[0].Start(Reduction(chunks[c]));
    for (size_t c = 0; c < 8; ++c) nodes[1].Start(Reduction(chunks[8 + c]));
    if (round % 2 == 0 && size() == 2) {
      EXPECT_TRUE(nodes.ended(1)[0].ok());
    }
    nodes[1].Abort();
    const absl::Status s = nodes.ended(0)[7];
    if (s.ok()) continue;  // all of it was through
    EXPECT_EQ(s.code(), absl::StatusCode::kUnavailable) << s;
    EXPECT_NE(s.message().find("node n1 (host b)"), std::string::npos) << s;
    const absl::Status next = nodes.Do(0, Reduction(chunks[0]));
    EXPECT_EQ(next.code(), absl::StatusCode::kUnavailable) << next;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, TcpBackendTest,
                         testing::Combine(testing::Values(2u, 3u),
                                          testing::ValuesIn(Wires())),
                         [](const auto& mode) {
                           return std::to_string(std::get<0>(mode.param)) +
                                  Name(std::get<1>(mode.param));
                         });

// With the levels of cheap and dear messages, reductions and latencies. The
// numbers are whole, so that their order does not matter.
TEST(TcpBackendLevels, ManyChunksInLevels) {
  constexpr size_t kChunks = 60;
  constexpr LinkCosts kCosts[] = {
      {0, 1'000'000, 1, 1}, {1'000'000, 1, 1, 1}, {1, 1, 1'000'000, 1}};
  for (const LinkCosts& costs : kCosts) {
    for (const uint32_t n : {2u, 4u, 6u, 12u}) {
      Nodes nodes(n, TcpBackendOptions{
                         .connections = 2, .max_levels = 4, .costs = costs});
      nodes.Connect();
      nodes.Together([&](uint32_t node) {
        std::vector<std::vector<float>> chunks(kChunks);
        for (size_t c = 0; c < kChunks; ++c) {
          chunks[c].assign(1 + c * 7919 % 20000, static_cast<float>(node + c));
          Work work = Reduction(chunks[c], {.scale = 2.0});
          work.streams = c % 2 == 0;
          nodes[node].Start(std::move(work));
        }
        for (size_t c = 0; c < kChunks; ++c) {
          const absl::Status s = nodes.ended(node)[c];
          ASSERT_TRUE(s.ok()) << s;
          const auto want = static_cast<float>(n * (n - 1) + 2 * n * c);
          for (const float v : chunks[c]) ASSERT_EQ(v, want) << "chunk " << c;
        }
      });
    }
  }
}

TEST(TcpBackendLevels, AllNodesAgreeOnWhatLinksCost) {
  for (const uint32_t n : {1u, 2u, 3u, 6u}) {
    Nodes nodes(n);
    nodes.Connect();
    std::vector<AgreedLinks> agreed(n);
    nodes.Together([&](uint32_t node) {
      const absl::StatusOr<AgreedLinks> links = MeasureLinks(
          &nodes[node], {.self = node, .nodes = n, .max_levels = 4 - node % 3});
      ASSERT_TRUE(links.ok()) << links.status();
      agreed[node] = *links;
    });
    for (const AgreedLinks& a : agreed) {
      EXPECT_EQ(a.costs, agreed[0].costs);
      EXPECT_EQ(a.max_levels, n < 3 ? 5 - n : 2u);
      EXPECT_EQ(a.costs.latency + a.costs.message > 0, n > 1);
      EXPECT_EQ(a.costs.reduce > 0, n > 1);
      EXPECT_EQ(a.wires, agreed[0].wires);
      ASSERT_EQ(a.wires.size(), n);
      for (const uint64_t wire : a.wires) {
        EXPECT_GE(wire, 1u);
        // Of the pairs (0, 1), (2, 3), ... the slowest wire counts.
        if (n % 2 == 0) {
          EXPECT_LE(wire, std::max<uint64_t>(a.costs.wire, 1));
        }
      }
    }
  }
}

TEST(TcpBackendLevels, ASlowWireIsFound) {
  constexpr uint64_t kGigabit = 8'000'000;
  using Nodes = std::vector<uint32_t>;
  EXPECT_EQ(SlowWires({}), Nodes());
  EXPECT_EQ(SlowWires({80 * kGigabit, 80 * kGigabit}), Nodes());
  EXPECT_EQ(SlowWires({kGigabit, 10 * kGigabit, kGigabit}), Nodes{1});
  EXPECT_EQ(SlowWires({9 * kGigabit, kGigabit, 2 * kGigabit, 4 * kGigabit}),
            Nodes{0});
  EXPECT_EQ(SlowWires({kGigabit, kGigabit, 10 * kGigabit, 10 * kGigabit}),
            (Nodes{2, 3}));
  // Too fast to be measured well.
  EXPECT_EQ(SlowWires({100'000, 1'900'000, 100'000, 100'000}), Nodes());
  EXPECT_EQ(SlowWires({100'000, 2'100'000, 100'000, 100'000}), Nodes{1});
}

TEST(TcpBackendLevels, MeasuredChunksAreNobodysPayload) {
  Nodes nodes(3, TcpBackendOptions{.max_levels = 4});
  nodes.Connect();
  nodes.Together([&](uint32_t node) {
    EXPECT_EQ(nodes[node].bytes_sent() + nodes[node].bytes_received(), 0u);
    std::vector<float> chunk(10, 1.0f);
    const absl::Status s = nodes.Do(node, Reduction(chunk));
    ASSERT_TRUE(s.ok()) << s;
    EXPECT_EQ(chunk, std::vector<float>(10, 3.0f));
  });
}

// Node 1 connects, but does not take part in the measurement.
class HalfMeasured {
 public:
  explicit HalfMeasured(std::chrono::milliseconds timeout) {
    TcpBackendOptions options{
        .hosts = {"127.0.0.1"},
        .nonce = 1,
        .node_names = {"node n0 (host a)", "node n1 (host b)"},
        .connect_timeout = timeout};
    other = std::make_unique<TcpBackend>(options);
    options.max_levels = 4;
    measuring = std::make_unique<TcpBackend>(options);
    const auto a = measuring->Prepare(0, 2);
    const auto b = other->Prepare(1, 2);
    EXPECT_TRUE(a.ok() && b.ok());
    waiter_ = std::thread([this, at = (*b)[0]] {
      status_ = measuring->Connect({"", at});
    });
    const absl::Status connected = other->Connect({(*a)[1], ""});
    EXPECT_TRUE(connected.ok()) << connected;
  }
  absl::Status Await() {
    waiter_.join();
    return status_;
  }
  std::unique_ptr<TcpBackend> measuring, other;

 private:
  absl::Status status_;
  std::thread waiter_;
};

TEST(TcpBackendLevels, AbortEndsAMeasurement) {
  HalfMeasured nodes(std::chrono::seconds(60));
  nodes.measuring->Abort();
  const absl::Status s = nodes.Await();
  EXPECT_EQ(s.code(), absl::StatusCode::kAborted) << s;
}

TEST(TcpBackendLevels, ALostPeerEndsAMeasurement) {
  HalfMeasured nodes(std::chrono::seconds(60));
  nodes.other->Abort();
  const absl::Status s = nodes.Await();
  EXPECT_EQ(s.code(), absl::StatusCode::kUnavailable) << s;
  EXPECT_NE(s.message().find("node n1 (host b)"), std::string::npos) << s;
}

TEST(TcpBackendLevels, WhoDoesNotMeasureIsNamed) {
  const absl::Status s = HalfMeasured(std::chrono::seconds(2)).Await();
  EXPECT_EQ(s.code(), absl::StatusCode::kUnavailable) << s;
  EXPECT_EQ(s.message(),
            "node n1 (host b) has not taken part in measuring the links "
            "between the nodes within 2000 ms; is its executor stopped?");
}

TEST(TcpBackend, AbortEndsAConnectThatWaits) {
  Nodes nodes(2);
  absl::Status status;
  std::thread waiter([&] { status = nodes[0].Connect(nodes.AddressesOf(0)); });
  nodes[0].Abort();
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
}

TEST(TcpBackend, StrangerIsNoticedByItsNonce) {
  TcpBackend ours({.hosts = {"127.0.0.1"},
                   .nonce = 1,
                   .connect_timeout = std::chrono::milliseconds(300)});
  TcpBackend stranger({.hosts = {"127.0.0.1"}, .nonce = 2});
  auto a = ours.Prepare(0, 2);
  auto b = stranger.Prepare(1, 2);
  ASSERT_TRUE(a.ok() && b.ok());
  absl::Status theirs;
  std::thread t([&] { theirs = stranger.Connect({(*a)[1], ""}); });
  const absl::Status status = ours.Connect({"", (*b)[0]});
  t.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(theirs.code(), absl::StatusCode::kPermissionDenied) << theirs;
}

TEST(TcpBackend, AddressThatIsNotOursIsAnError) {
  TcpBackend backend({.hosts = {"192.0.2.1"}});
  const auto addresses = backend.Prepare(0, 2);
  EXPECT_EQ(addresses.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(addresses.status().message().find("--network"), std::string::npos)
      << addresses.status();
}

TEST(TcpBackend, FindsItsAddressWhenItPreparesAndUntilItIsAborted) {
  TcpBackend found({.find_host = [](const auto&) { return "127.0.0.1"; }});
  EXPECT_TRUE(found.Prepare(0, 2).ok());
  TcpBackend hangs(
      {.find_host = [](const auto& stopped) -> absl::StatusOr<std::string> {
        while (!stopped()) std::this_thread::yield();
        return absl::CancelledError("the look-up was stopped");
      }});
  absl::Status status;
  std::thread t([&] { status = hangs.Prepare(0, 2).status(); });
  hangs.Abort();
  t.join();
  EXPECT_NE(status.message().find("the look-up was stopped"), std::string::npos)
      << status;
}

TEST(TcpBackend, AnotherNumberOfConnectionsIsAnError) {
  TcpBackend two({.hosts = {"127.0.0.1"}, .connections = 2});
  TcpBackend one({.hosts = {"127.0.0.1"}});
  const auto offer = one.Prepare(1, 2);
  ASSERT_TRUE(two.Prepare(0, 2).ok() && offer.ok());
  const absl::Status s = two.Connect({"", (*offer)[0]});
  EXPECT_NE(s.message().find("--network_connections"), std::string::npos) << s;
}

TEST(TcpBackend, MalformedAddressIsAnError) {
  TcpBackend backend({.hosts = {"127.0.0.1"}});
  ASSERT_TRUE(backend.Prepare(0, 2).ok());
  EXPECT_FALSE(backend.Connect({"", "nonsense"}).ok());
  EXPECT_FALSE(backend.Connect({""}).ok());
}

// Connections are spread over all, whatever their number.
TEST(TcpBackend, SeveralAddresses) {
  for (const uint32_t connections : {1u, 2u, 3u}) {
    TcpBackendOptions options{.connections = connections};
    options.hosts = {"127.0.0.1", "127.0.0.2"};
    Nodes nodes(3, std::move(options));
    nodes.Connect();
    nodes.Together([&](uint32_t node) {
      std::vector<std::vector<float>> chunks(20);
      for (auto& chunk : chunks) {
        chunk.assign(5000, static_cast<float>(node));
        nodes[node].Start(Reduction(chunk));
      }
      for (size_t c = 0; c < chunks.size(); ++c) {
        const absl::Status s = nodes.ended(node)[c];
        ASSERT_TRUE(s.ok()) << s;
        EXPECT_EQ(chunks[c], std::vector<float>(5000, 3.0f));
      }
    });
  }
}

TEST(TcpBackend, AnotherNumberOfAddressesIsAnError) {
  TcpBackend two({.hosts = {"127.0.0.1", "127.0.0.2"}});
  TcpBackend one({.hosts = {"127.0.0.1"}});
  const auto offer = one.Prepare(1, 2);
  ASSERT_TRUE(two.Prepare(0, 2).ok() && offer.ok());
  const absl::Status s = two.Connect({"", (*offer)[0]});
  EXPECT_NE(s.message().find("the number of addresses of --network"),
            std::string::npos)
      << s;
}

// --- Encryption --------------------------------------------------------------

constexpr EncryptionMode kOff = EncryptionMode::kOff;
constexpr EncryptionMode kOn = EncryptionMode::kOn;
constexpr EncryptionMode kRequire = EncryptionMode::kRequire;

// Nodes with a mode each.
class Mixed {
 public:
  explicit Mixed(const std::vector<EncryptionMode>& modes,
                 std::chrono::milliseconds timeout = std::chrono::seconds(10))
      : reports(modes.size()), results(modes.size()) {
    const auto n = static_cast<uint32_t>(modes.size());
    for (uint32_t i = 0; i < n; ++i) {
      TcpBackendOptions options{
          .hosts = {"127.0.0.1"},
          .nonce = 1,
          .node_names = {"node n0 (host a)", "node n1 (host b)",
                         "node n2 (host c)"},
          .connect_timeout = timeout};
      options.encryption = modes[i];
      options.on_encrypted = [this, i](const EncryptedNodes& nodes) {
        reports[i] = nodes;
      };
      backends.push_back(std::make_unique<TcpBackend>(std::move(options)));
      auto prepared = backends[i]->Prepare(i, n);
      EXPECT_TRUE(prepared.ok());
      offers.push_back(*prepared);
    }
  }
  void Connect() {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < backends.size(); ++i) {
      threads.emplace_back([this, i] {
        std::vector<std::string> addresses(backends.size());
        for (uint32_t k = 0; k < backends.size(); ++k) {
          addresses[k] = offers[k][i];
        }
        results[i] = backends[i]->Connect(addresses);
        if (!results[i].ok()) backends[i]->Abort();
      });
    }
    for (std::thread& t : threads) t.join();
  }

  std::vector<std::unique_ptr<TcpBackend>> backends;
  std::vector<std::vector<std::string>> offers;
  std::vector<EncryptedNodes> reports;
  std::vector<absl::Status> results;
};

TEST(TcpBackendEncryption, BothEndsComeToTheSameResult) {
  for (const EncryptionMode a : {kOff, kOn, kRequire}) {
    for (const EncryptionMode b : {kOff, kOn, kRequire}) {
      Mixed nodes({a, b});
      nodes.Connect();
      const bool off = a == kOff || b == kOff;
      const bool refused = off && (a == kRequire || b == kRequire);
      for (int i = 0; i < 2; ++i) {
        SCOPED_TRACE(std::string(Name(a)) + " and " + std::string(Name(b)));
        ASSERT_EQ(nodes.results[i].ok(), !refused) << nodes.results[i];
        if (refused) continue;
        EXPECT_EQ(nodes.reports[i].encrypted, off ? 0u : 1u);
        EXPECT_EQ(nodes.reports[i].clear, off ? 1u : 0u);
        EXPECT_EQ(nodes.reports[i].suite.empty(), off);
        EXPECT_EQ(
            nodes.backends[i]->TakeMessageConnections()[1 - i].encrypted(),
            !off);
      }
    }
  }
}

TEST(TcpBackendEncryption, WhoDoesNotEncryptIsNamed) {
  Mixed nodes({kRequire, kOff});
  nodes.Connect();
  EXPECT_EQ(nodes.results[0].message(),
            "cannot connect to node n1 (host b): it does not encrypt, which "
            "this node requires; start its agent with --network_encryption=on");
  EXPECT_EQ(nodes.results[1].message(),
            "cannot connect to node n0 (host a): it requires encryption, and "
            "this node does not encrypt; start this node's agent with "
            "--network_encryption=on");
}

TEST(TcpBackendEncryption, NodesThatBothEncryptDoSoBesideOneThatDoesNot) {
  Mixed nodes({kOn, kOff, kOn});
  nodes.Connect();
  for (const absl::Status& s : nodes.results) EXPECT_TRUE(s.ok()) << s;
  EXPECT_EQ(nodes.reports[0].encrypted, 1u);
  EXPECT_EQ(nodes.reports[0].clear, 1u);
  EXPECT_EQ(nodes.reports[1].encrypted, 0u);
  EXPECT_EQ(nodes.reports[2].encrypted, 1u);
}

// Somebody between executors and coordinator changes the offers: of both, or of
// one. They do not know the secrets, or do not use them.
TEST(TcpBackendEncryption, ChangedOffersAreRefusedAndNamed) {
  const auto to_clear = [](std::string* offer) {
    (*offer)[0] = static_cast<char>((*offer)[0] & 0x0f);
  };
  const auto to_encrypted = [](std::string* offer) {
    (*offer)[0] = static_cast<char>((*offer)[0] | 0x10);
  };
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    Mixed nodes(round == 3 ? std::vector{kOff, kOff} : std::vector{kOn, kOn});
    if (round == 0 || round == 1) to_clear(&nodes.offers[0][1]);
    if (round == 0 || round == 2) to_clear(&nodes.offers[1][0]);
    if (round == 3) to_encrypted(&nodes.offers[1][0]);
    nodes.Connect();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(nodes.results[i].code(), absl::StatusCode::kPermissionDenied)
          << nodes.results[i];
      const std::string text(nodes.results[i].message());
      EXPECT_EQ(text.find(i == 0 ? "cannot connect to node n1 (host b): what"
                                 : "cannot connect to node n0 (host a): what"),
                0u)
          << text;
      EXPECT_NE(text.find("was changed on its way"), std::string::npos) << text;
    }
  }
}

// Two nodes, of which one is aborted while the other one makes handshakes.
TEST(TcpBackendEncryption, AbortEndsAHandshake) {
  for (int round = 0; round < 20; ++round) {
    Mixed nodes({kOn, kOn}, std::chrono::milliseconds(300));
    std::thread stop([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
      nodes.backends[0]->Abort();
    });
    nodes.Connect();
    stop.join();
    EXPECT_TRUE(nodes.results[0].ok() || absl::IsAborted(nodes.results[0]))
        << nodes.results[0];
  }
}

// The peer proves itself and then does not begin TLS, or talks without.
TEST(TcpBackendEncryption, WhoDoesNotMakeTheHandshakeIsNamed) {
  for (const bool talks : {false, true}) {
    TcpBackend backend({.hosts = {"127.0.0.1"},
                        .nonce = 1,
                        .node_names = {"node n0 (host a)", "node n1 (host b)"},
                        .connect_timeout = std::chrono::milliseconds(500),
                        .encryption = kRequire});
    auto peer = AuthenticatedListener::Open({.hosts = {"127.0.0.1"},
                                             .self = 1,
                                             .connections = 3,
                                             .epoch = 1,
                                             .encryption = kOn});
    const auto offers = backend.Prepare(0, 2);
    ASSERT_TRUE(peer.ok() && offers.ok());
    ASSERT_EQ((*peer)->SetPeers({(*offers)[1], ""}), nullptr);
    std::vector<Authenticated> met;
    std::thread calls([&] {
      for (uint32_t c = 0; c < 3; ++c) {
        auto called = (*peer)->Connection(
            0, c,
            AuthenticatedListener::Clock::now() + std::chrono::seconds(9));
        ASSERT_TRUE(called.ok()) << called.status();
        if (talks) send(called->socket.get(), "in the clear", 12, 0);
        met.push_back(*std::move(called));
      }
    });
    const absl::Status s = backend.Connect({"", (*peer)->AddressFor(0)});
    calls.join();
    const std::string text(s.message());
    EXPECT_EQ(text.find("cannot connect to node n1 (host b): "), 0u) << text;
    EXPECT_NE(text.find(talks ? "the TLS handshake failed ("
                              : "it has not finished the TLS handshake within "
                                "500 ms; is its executor stopped?"),
              std::string::npos)
        << text;
  }
}

TEST(TcpBackendEncryption, OffersInTheClearAreWhatTheyAlwaysWere) {
  TcpBackend clear({.hosts = {"127.0.0.1"}, .connections = 2});
  TcpBackend encrypted(
      {.hosts = {"127.0.0.1"}, .connections = 2, .encryption = kOn});
  const auto a = clear.Prepare(0, 2);
  const auto b = encrypted.Prepare(0, 2);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ((*a)[1][0], 5);  // connections: 2 in each direction, and one
  EXPECT_EQ((*b)[1][0], 0x15);
  EXPECT_EQ((*a)[1].size(), 1 + 32 + 2 + std::string("127.0.0.1").size());
}

}  // namespace
}  // namespace maypole::worker
