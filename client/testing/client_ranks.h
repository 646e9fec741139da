// ClientTest: runs clients of several ranks as threads of one process, with a
// real socket and board, so that ThreadSanitizer can check them. Also helpers
// for its tests.
//
// Thread contract: as each class says.
#ifndef MAYPOLE_CLIENT_TESTING_CLIENT_RANKS_H_
#define MAYPOLE_CLIENT_TESTING_CLIENT_RANKS_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/api/client.h"
#include "client/testing/fake_executor.h"

namespace maypole {

// One thread uses the fixture; Run() calls its function on one thread per rank.
class ClientTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string dir = std::string(getenv("TEST_TMPDIR")) + "/cXXXXXX";
    ASSERT_NE(mkdtemp(dir.data()), nullptr);
    ASSERT_EQ(chdir(dir.c_str()), 0);  // socket paths are short
  }

  // Runs `rank` in one thread per rank, each with its client.
  void Run(int ranks, const std::function<void(int, Client&)>& rank) {
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        RankOptions o;
        o.rank = o.local_rank = r;
        o.size = o.local_size = ranks;
        o.job = "test";
        o.agent = "agent.sock";
        o.elastic = elastic_;
        std::unique_ptr<Client> client;
        const Status s = Client::Join(o, &client);
        ASSERT_TRUE(s.ok()) << s.message();
        rank(r, *client);
      });
    }
    for (auto& t : threads) t.join();
  }

  bool elastic_ = false;
};

inline Tensor Floats(std::vector<float>& v) {
  return {
      DType::kFloat32, {static_cast<int64_t>(v.size())}, v.data(), v.data()};
}

// Records the calls of OnDone()'s callbacks, on any thread.
class Calls {
 public:
  std::function<void(const Status&)> Add() {
    return [this](const Status& s) {
      std::lock_guard lock(mutex_);
      threads_.push_back(std::this_thread::get_id());
      outcomes_.push_back(s.code());
      changed_.notify_all();
    };
  }
  std::vector<Code> Await(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30),
                      [&] { return outcomes_.size() >= count; });
    return outcomes_;
  }
  std::vector<std::thread::id> threads() {
    std::lock_guard lock(mutex_);
    return threads_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Code> outcomes_;
  std::vector<std::thread::id> threads_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_TESTING_CLIENT_RANKS_H_
