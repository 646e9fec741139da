// Which nodes use UCX, and what is said where they do not. ucx_test runs it
// with a UCX.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/backend/tcp_backend.h"
#include "worker/backend/ucx/ucx.h"

namespace maypole::worker {
namespace {

// Two nodes with a data path and an encryption mode each.
class Pair {
 public:
  struct Node {
    DataPath path = DataPath::kUcx;
    EncryptionMode encryption = EncryptionMode::kOff;
  };
  Pair(Node a, Node b) : nodes{a, b} {
    SetUcxEnvironment();
    for (uint32_t i = 0; i < 2; ++i) {
      TcpBackendOptions options{
          .hosts = {"127.0.0.1"},
          .nonce = 1,
          .node_names = {"node n0 (host a)", "node n1 (host b)"},
          .encryption = nodes[i].encryption,
          .data_path = nodes[i].path};
      options.on_data_paths = [this, i](const DataPaths& p) { paths[i] = p; };
      backends[i] = std::make_unique<TcpBackend>(std::move(options));
      auto prepared = backends[i]->Prepare(i, 2);
      EXPECT_TRUE(prepared.ok()) << prepared.status();
      offers[i] = *prepared;
    }
    const auto connect = [this](uint32_t i) {
      std::vector<std::string> addresses(2);
      addresses[1 - i] = offers[1 - i][i];
      results[i] = backends[i]->Connect(addresses);
      if (!results[i].ok()) backends[i]->Abort();
    };
    std::thread other(connect, 1);
    connect(0);
    other.join();
  }

  Node nodes[2];
  std::unique_ptr<TcpBackend> backends[2];
  std::vector<std::string> offers[2];
  DataPaths paths[2];
  absl::Status results[2];
};

TEST(TcpBackendUcx, BothEndsUseItOrNeitherDoes) {
  const Pair both({}, {});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(both.results[i].ok()) << both.results[i];
    EXPECT_EQ(both.paths[i].ucx, 1u);
    EXPECT_EQ(both.paths[i].tcp, 0u);
    EXPECT_EQ(both.paths[i].why, "");
  }
  const Pair neither({.path = DataPath::kTcp}, {.path = DataPath::kTcp});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(neither.results[i].ok()) << neither.results[i];
    EXPECT_EQ(neither.paths[i].ucx, 0u);
    EXPECT_EQ(neither.paths[i].tcp, 1u);
    EXPECT_EQ(neither.paths[i].why, "--network_backend is tcp");
  }
}

TEST(TcpBackendUcx, WhoRequiresItNamesWhoDoesNotUseIt) {
  const Pair mixed({}, {.path = DataPath::kTcp});
  EXPECT_EQ(mixed.results[0].message(),
            "node n1 (host b) does not use UCX, but --network_backend=ucx of "
            "this node requires it; start all agents with the same "
            "--network_backend: ucx, auto or tcp");
}

TEST(TcpBackendUcx, NothingGoesOverItWhereNodesEncrypt) {
  const Pair encrypted({.encryption = EncryptionMode::kOn},
                       {.encryption = EncryptionMode::kOn});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(encrypted.results[i].code(),
              absl::StatusCode::kFailedPrecondition)
        << encrypted.results[i];
  }
  EXPECT_EQ(encrypted.results[0].message(),
            "node n1 (host b) and this node encrypt, which UCX cannot, but "
            "--network_backend=ucx of this node requires it; start all agents "
            "with the same --network_backend: ucx, auto or tcp");
}

}  // namespace
}  // namespace maypole::worker
