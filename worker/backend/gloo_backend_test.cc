#include "worker/backend/gloo_backend.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <thread>

// Gloo loses an addrinfo when it finds no address that can be bound.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:gloo::transport::tcp::CreateDeviceAttr";
}

namespace maypole::worker {
namespace {

// N backends on loopback, prepared; each test connects them in threads.
class Nodes {
 public:
  explicit Nodes(uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
      GlooOptions options{.host = "127.0.0.1",
                          .nonce = 77,
                          .node_names = {"node n0 (host a)", "node n1 (host b)",
                                         "node n2 (host c)"}};
      backends_.push_back(std::make_unique<GlooBackend>(options));
      auto addresses = backends_[i]->Prepare(i, n);
      EXPECT_TRUE(addresses.ok()) << addresses.status();
      offers_.push_back(*addresses);
      EXPECT_EQ(offers_[i][i], "");
    }
  }

  uint32_t size() const { return static_cast<uint32_t>(backends_.size()); }
  GlooBackend& operator[](uint32_t i) { return *backends_[i]; }

  std::vector<std::string> AddressesOf(uint32_t node) const {
    std::vector<std::string> out(backends_.size());
    for (uint32_t i = 0; i < size(); ++i) out[i] = offers_[i][node];
    return out;
  }

  // Runs f(node) for all nodes at once.
  void Together(const std::function<void(uint32_t)>& f) {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < size(); ++i) threads.emplace_back(f, i);
    for (std::thread& t : threads) t.join();
  }

  void Connect() {
    Together([&](uint32_t i) {
      const absl::Status s = backends_[i]->Connect(AddressesOf(i));
      EXPECT_TRUE(s.ok()) << s;
    });
  }

 private:
  std::vector<std::unique_ptr<GlooBackend>> backends_;
  std::vector<std::vector<std::string>> offers_;
};

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

class GlooBackendTest : public testing::TestWithParam<uint32_t> {};

TEST_P(GlooBackendTest, AllreduceSumsEveryDtypeAndSize) {
  Nodes nodes(GetParam());
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
        const absl::Status s = nodes[node].Allreduce(chunk, dtype, Finish{});
        ASSERT_TRUE(s.ok()) << s;
        const int n = static_cast<int>(GetParam());
        for (size_t i = 0; i < elements; ++i) {
          const double want = static_cast<int>(i % 7) * n + n * (n - 1) / 2;
          ASSERT_EQ(Load(dtype, &chunk[i * width]), want)
              << Name(dtype) << " element " << i << " of " << elements;
        }
      });
    }
  }
}

TEST_P(GlooBackendTest, AllreduceFinishesOnce) {
  Nodes nodes(GetParam());
  nodes.Connect();
  nodes.Together([&](uint32_t node) {
    std::vector<float> chunk(1000, static_cast<float>(node + 1));
    const absl::Status s =
        nodes[node].Allreduce(std::as_writable_bytes(std::span(chunk)),
                              DType::kFloat32, {.divisor = 2, .scale = 3.0});
    ASSERT_TRUE(s.ok()) << s;
    const float n = static_cast<float>(GetParam());
    for (float v : chunk) ASSERT_EQ(v, n * (n + 1) / 2 / 2 * 3);
  });
  EXPECT_GT(nodes[0].bytes_sent(), 0u);
  EXPECT_GT(nodes[0].bytes_received(), 0u);
}

TEST_P(GlooBackendTest, ExchangeGivesEverySegmentToAll) {
  Nodes nodes(GetParam());
  nodes.Connect();
  // Node i owns bytes [i*10, i*10+7) and one byte at 40+i; the rest is
  // nobody's.
  std::vector<Segment> segments;
  for (uint32_t i = 0; i < GetParam(); ++i) segments.push_back({i, i * 10, 7});
  for (uint32_t i = 0; i < GetParam(); ++i) segments.push_back({i, 40 + i, 1});
  nodes.Together([&](uint32_t node) {
    std::vector<uint8_t> chunk(64, 200);
    for (int i = 0; i < 7; ++i) {
      chunk[node * 10 + i] = static_cast<uint8_t>(node * 10 + i);
    }
    chunk[40 + node] = static_cast<uint8_t>(node);
    const absl::Status s = nodes[node].Exchange(
        std::as_writable_bytes(std::span(chunk)), segments);
    ASSERT_TRUE(s.ok()) << s;
    for (uint32_t i = 0; i < GetParam(); ++i) {
      for (uint32_t j = 0; j < 7; ++j) ASSERT_EQ(chunk[i * 10 + j], i * 10 + j);
      ASSERT_EQ(chunk[40 + i], i);
    }
    ASSERT_EQ(chunk[63], 200);
  });
}

TEST_P(GlooBackendTest, AbortEndsAWaitForALatePeer) {
  Nodes nodes(GetParam());
  nodes.Connect();
  absl::Status status;
  std::vector<float> chunk(100000, 1.0f);
  std::thread waiter([&] {
    status = nodes[0].Allreduce(std::as_writable_bytes(std::span(chunk)),
                                DType::kFloat32, Finish{});
  });
  nodes[0].Abort();  // before, while or after it begins to wait
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_EQ(nodes[0].Exchange({}, {}).code(), absl::StatusCode::kAborted);
}

TEST_P(GlooBackendTest, ALostPeerIsNamed) {
  Nodes nodes(GetParam());
  nodes.Connect();
  absl::Status status;
  std::vector<float> chunk(100000, 1.0f);
  std::thread waiter([&] {
    status = nodes[0].Allreduce(std::as_writable_bytes(std::span(chunk)),
                                DType::kFloat32, Finish{});
  });
  for (uint32_t i = 1; i < GetParam(); ++i) nodes[i].Abort();
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find("node n1 (host b)"), std::string::npos)
      << status;
}

INSTANTIATE_TEST_SUITE_P(Sizes, GlooBackendTest, testing::Values(2u, 3u));

TEST(GlooBackend, AbortEndsAConnectThatWaits) {
  Nodes nodes(2);
  absl::Status status;
  std::thread waiter([&] { status = nodes[0].Connect(nodes.AddressesOf(0)); });
  nodes[0].Abort();
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
}

TEST(GlooBackend, StrangerIsNoticedByItsNonce) {
  GlooBackend ours({.host = "127.0.0.1", .nonce = 1});
  GlooBackend stranger({.host = "127.0.0.1", .nonce = 2});
  auto a = ours.Prepare(0, 2);
  auto b = stranger.Prepare(1, 2);
  ASSERT_TRUE(a.ok() && b.ok());
  absl::Status status;
  std::thread t([&] { (void)stranger.Connect({(*a)[1], ""}); });
  status = ours.Connect({"", (*b)[0]});
  t.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
}

TEST(GlooBackend, AddressThatIsNotOursIsAnError) {
  GlooBackend backend({.host = "192.0.2.1"});
  const auto addresses = backend.Prepare(0, 2);
  EXPECT_EQ(addresses.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(addresses.status().message().find("--network"), std::string::npos)
      << addresses.status();
}

TEST(GlooBackend, MalformedAddressIsAnError) {
  GlooBackend backend({.host = "127.0.0.1"});
  ASSERT_TRUE(backend.Prepare(0, 2).ok());
  EXPECT_FALSE(backend.Connect({"", "nonsense"}).ok());
  EXPECT_FALSE(backend.Connect({""}).ok());
}

}  // namespace
}  // namespace maypole::worker
