// Helpers for tests: several TcpBackends in one process, one thread per node.
#ifndef MAYPOLE_WORKER_BACKEND_TESTING_TCP_TESTING_H_
#define MAYPOLE_WORKER_BACKEND_TESTING_TCP_TESTING_H_

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/backend/tcp_backend.h"
#include "worker/backend/ucx/ucx.h"

namespace maypole::worker {
// Collects the results of a backend's chunks.
class Ended {
 public:
  void Add(const absl::Status& s) {
    std::lock_guard lock(mutex_);
    all_.push_back(s);
    changed_.notify_all();
  }
  // Waits for the result of the n-th chunk and returns it.
  absl::Status operator[](size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return all_.size() > n; });
    return all_[n];
  }
  size_t size() {
    std::lock_guard lock(mutex_);
    return all_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<absl::Status> all_;
};

inline Work Reduction(std::span<std::byte> chunk, DType dtype,
                      Epilogue finish = {}) {
  return {.chunk = chunk, .reduces = true, .dtype = dtype, .finish = finish};
}

inline Work Reduction(std::vector<float>& chunk, Epilogue finish = {}) {
  return Reduction(std::as_writable_bytes(std::span(chunk)), DType::kFloat32,
                   finish);
}

// How the nodes of a test exchange chunks.
enum class Wire { kClear, kEncrypted, kUcx };

// UCX where the environment names its library: ucx_test_long does.
inline std::vector<Wire> Wires() {
  if (std::getenv(kUcxLibraryVariable) == nullptr) {
    return {Wire::kClear, Wire::kEncrypted};
  }
  SetUcxEnvironment();
  return {Wire::kUcx};
}

inline TcpBackendOptions OptionsFor(Wire wire, uint32_t connections = 1) {
  return {.connections = connections,
          .encryption = wire == Wire::kEncrypted ? EncryptionMode::kRequire
                                                 : EncryptionMode::kOff,
          .data_path = wire == Wire::kUcx ? DataPath::kUcx : DataPath::kTcp};
}

inline std::string Name(Wire wire) {
  return wire == Wire::kClear       ? "Clear"
         : wire == Wire::kEncrypted ? "Encrypted"
                                    : "Ucx";
}

// N prepared backends on loopback; each test connects them in threads.
class Nodes {
 public:
  explicit Nodes(uint32_t n, uint32_t connections = 1)
      : Nodes(n, TcpBackendOptions{.connections = connections}) {}
  Nodes(uint32_t n, TcpBackendOptions options) {
    if (options.hosts.empty()) options.hosts = {"127.0.0.1"};
    options.nonce = 77;
    options.node_names = {"node n0 (host a)", "node n1 (host b)",
                          "node n2 (host c)", "node n3 (host d)"};
    for (uint32_t i = 0; i < n; ++i) {
      backends_.push_back(std::make_unique<TcpBackend>(options));
      ended_.push_back(std::make_unique<Ended>());
      backends_[i]->OnEnded(
          [ended = ended_[i].get()](const absl::Status& s) { ended->Add(s); });
      auto addresses = backends_[i]->Prepare(i, n);
      EXPECT_TRUE(addresses.ok()) << addresses.status();
      offers_.push_back(*addresses);
      EXPECT_EQ(offers_[i][i], "");
    }
  }

  uint32_t size() const { return static_cast<uint32_t>(backends_.size()); }
  TcpBackend& operator[](uint32_t i) { return *backends_[i]; }
  Ended& ended(uint32_t i) { return *ended_[i]; }
  // Starts a chunk while no other is in flight, and waits for its end.
  absl::Status Do(uint32_t node, Work work) {
    const size_t n = ended_[node]->size();
    backends_[node]->Start(std::move(work));
    return (*ended_[node])[n];
  }
  void Drop(uint32_t node) { backends_[node].reset(); }

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
  std::vector<std::unique_ptr<Ended>> ended_;
  std::vector<std::unique_ptr<TcpBackend>> backends_;
  std::vector<std::vector<std::string>> offers_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TESTING_TCP_TESTING_H_
