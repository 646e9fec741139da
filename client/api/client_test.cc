// Clients of several ranks as threads of one process, with a real socket and
// board; so ThreadSanitizer can check them.
#include "client/api/client.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "client/testing/fake_executor.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

class ClientTest : public ::testing::Test {
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

Tensor Floats(std::vector<float>& v) {
  return {
      DType::kFloat32, {static_cast<int64_t>(v.size())}, v.data(), v.data()};
}

TEST_F(ClientTest, ManyOperationsInAnyOrderByRank) {
  FakeExecutor executor("agent.sock", 3);
  Run(3, [](int rank, Client& client) {
    for (int round = 0; round < 20; ++round) {
      constexpr int kTensors = 12;
      std::vector<std::vector<float>> data;
      for (int i = 0; i < kTensors; ++i) {
        data.emplace_back(static_cast<size_t>(1 + i * 400),
                          static_cast<float>(rank + i + round));
      }
      std::map<int, int64_t> handles;
      for (int n = 0; n < kTensors; ++n) {
        const int i = (n * 5 + rank * 3) % kTensors;
        const Status s =
            client.Allreduce("t" + std::to_string(i), Floats(data[i]),
                             {.op = Op::kSum}, &handles[i]);
        ASSERT_TRUE(s.ok()) << s.message();
      }
      for (auto& [i, handle] : handles) {
        const Status s = client.Wait(handle, -1);
        ASSERT_TRUE(s.ok()) << s.message();
        ASSERT_TRUE(client.Release(handle).ok());
        const float want = 3.f * static_cast<float>(i + round) + 3.f;
        for (float v : data[static_cast<size_t>(i)]) ASSERT_EQ(v, want);
      }
    }
    EXPECT_EQ(client.pending(), 0);
    EXPECT_EQ(client.counters().completed.load(), 240);
  });
}

// A C caller sets only the fields that the kind needs; a broadcast has no
// factors.
TEST_F(ClientTest, FactorsCountForAllreduceOnly) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int rank, Client& client) {
    std::vector<float> v(10, static_cast<float>(rank + 5));
    Signature s;
    s.kind = Kind::kBroadcast;
    s.dtype = DType::kFloat32;
    s.dims = 1;
    s.shape[0] = 10;
    s.root = 1;
    s.prescale = s.postscale = 0.0;
    int64_t handle;
    ASSERT_TRUE(client.Submit("b", s, v.data(), v.data(), &handle).ok());
    ASSERT_TRUE(client.Wait(handle, -1).ok());
    EXPECT_EQ(v, std::vector<float>(10, 6.f));
  });
}

// No thread waits, so the progress thread alone must run the operation.
TEST_F(ClientTest, OperationsCompleteWithoutAnybodyWaiting) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int rank, Client& client) {
    std::vector<float> v(100000, static_cast<float>(rank + 1));
    int64_t handle;
    ASSERT_TRUE(client.Allreduce("", Floats(v), {}, &handle).ok());
    while (client.pending() > 0) std::this_thread::yield();
    ASSERT_TRUE(client.Wait(handle, 0).ok());
    EXPECT_EQ(v[99999], 1.5f);
  });
}

// The executor's answer to a new name may come before submit() returns. In an
// old bug it was then read only when the progress thread's sleep of a second
// was over.
TEST_F(ClientTest, NewNamesAreNotHeldUpWithoutAnybodyWaiting) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int, Client& client) {
    for (int i = 0; i < 30; ++i) {
      std::vector<float> v(100, 1);
      const auto start = Clock::now();
      int64_t handle;
      ASSERT_TRUE(client
                      .Allreduce("n" + std::to_string(i), Floats(v),
                                 {.op = Op::kSum}, &handle)
                      .ok());
      while (client.pending() > 0) std::this_thread::yield();
      EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(900)) << i;
      ASSERT_TRUE(client.Wait(handle, 0).ok());
      EXPECT_EQ(v[99], 2.f);
    }
  });
}

TEST_F(ClientTest, UnnamedOperationsMayOutnumberTheirSlots) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int rank, Client& client) {
    std::vector<std::vector<float>> data(
        300, std::vector<float>(1, static_cast<float>(rank)));
    std::vector<int64_t> handles(data.size());
    for (size_t i = 0; i < data.size(); ++i) {
      data[i][0] += static_cast<float>(i);
      const Status s =
          client.Allreduce("", Floats(data[i]), {.op = Op::kSum}, &handles[i]);
      ASSERT_TRUE(s.ok()) << s.message();
    }
    for (size_t i = 0; i < data.size(); ++i) {
      const Status s = client.Wait(handles[i], -1);
      ASSERT_TRUE(s.ok()) << s.message();
      EXPECT_EQ(data[i][0], 1.f + 2.f * static_cast<float>(i));
    }
  });
}

TEST_F(ClientTest, SecondSubmissionOfAPendingNameIsRefused) {
  FakeExecutor executor("agent.sock", 2);
  std::atomic<bool> tried{false};
  Run(2, [&](int rank, Client& client) {
    std::vector<float> v(1, 1.f), w(1, 1.f);
    int64_t a, b;
    if (rank == 1) {
      while (!tried.load()) std::this_thread::yield();
    }
    ASSERT_TRUE(client.Allreduce("x", Floats(v), {.op = Op::kSum}, &a).ok());
    if (rank == 0) {
      const Status s = client.Allreduce("x", Floats(w), {.op = Op::kSum}, &b);
      EXPECT_EQ(s.code(), Code::kAlreadyExists);
      EXPECT_NE(s.message().find("allreduce 'x'"), std::string::npos);
      // Another kind of the same name is another operation.
      EXPECT_TRUE(client.Broadcast("x", Floats(w), 0, &b).ok());
      tried.store(true);
    } else {
      ASSERT_TRUE(client.Broadcast("x", Floats(w), 0, &b).ok());
    }
    EXPECT_TRUE(client.Wait(a, -1).ok());
    EXPECT_TRUE(client.Wait(b, -1).ok());
    EXPECT_EQ(v[0], 2.f);
  });
}

// What OnDone() has called, by any thread.
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

TEST_F(ClientTest, CallbacksComeOnOneThreadOfTheirOwnOncePerOperation) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int rank, Client& client) {
    constexpr size_t kTensors = 50;
    std::vector<std::vector<float>> data(kTensors, std::vector<float>(300, 1));
    Calls calls;
    for (size_t n = 0; n < kTensors; ++n) {
      const size_t i = rank == 0 ? n : kTensors - 1 - n;
      // The hint that a wait follows may be wrong.
      const ReduceOptions options{.op = Op::kSum, .awaited = i % 7 == 0};
      int64_t handle;
      ASSERT_TRUE(client
                      .Allreduce("t" + std::to_string(i), Floats(data[i]),
                                 options, &handle)
                      .ok());
      ASSERT_TRUE(client.OnDone(handle, calls.Add()).ok());
      EXPECT_TRUE(client.Release(handle).ok());
    }
    EXPECT_EQ(calls.Await(kTensors), std::vector<Code>(kTensors, Code::kOk));
    for (const auto& tensor : data) EXPECT_EQ(tensor[299], 2.f);
    const auto threads = calls.threads();
    EXPECT_EQ(std::count(threads.begin(), threads.end(), threads[0]), 50);
    EXPECT_NE(threads[0], std::this_thread::get_id());
  });
}

TEST_F(ClientTest, ACallbackMaySubmitTheNextOperation) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int, Client& client) {
    constexpr int kRounds = 20;
    std::vector<float> x(2, 1);
    Calls calls;
    std::function<void(int)> submit = [&](int round) {
      int64_t handle;
      ASSERT_TRUE(
          client.Allreduce("x", Floats(x), {.op = Op::kSum}, &handle).ok());
      ASSERT_TRUE(client
                      .OnDone(handle,
                              [&, round, handle](const Status& s) {
                                ASSERT_TRUE(s.ok()) << s.message();
                                EXPECT_TRUE(client.Release(handle).ok());
                                if (round + 1 < kRounds) {
                                  submit(round + 1);
                                } else {
                                  calls.Add()(s);
                                }
                              })
                      .ok());
    };
    submit(0);
    EXPECT_EQ(calls.Await(1), std::vector<Code>{Code::kOk});
    EXPECT_EQ(x[1], static_cast<float>(1 << kRounds));
  });
}

// Each rank waits for what only the other's callback submits, which takes its
// time: that is no deadlock.
TEST_F(ClientTest, ARankWhoseCallbackRunsIsNotBlockedForCertain) {
  FakeExecutor executor("agent.sock", 2);
  std::atomic<bool> said_blocked{false};
  Run(2, [&](int rank, Client& client) {
    std::vector<float> first(2, 1), own(2, 1), others(2, 1);
    const std::string names[] = {"rank 0 waits", "rank 1 waits"};
    Calls calls;
    const auto callback = [&](const Status& s) {
      const auto end =
          Clock::now() + std::chrono::milliseconds(8 * kHeartbeatMs);
      while (Clock::now() < end && !said_blocked) {
        const auto& block = executor.board().rank(rank);
        if (block.blocked_count.load() % 2 != 0) said_blocked = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      int64_t handle;
      ASSERT_TRUE(
          client.Allreduce(names[1 - rank], Floats(others), {}, &handle).ok());
      EXPECT_TRUE(client.Wait(handle, -1).ok());
      calls.Add()(s);
    };
    int64_t handle;
    ASSERT_TRUE(client.Allreduce("first", Floats(first), {}, &handle).ok());
    ASSERT_TRUE(client.OnDone(handle, callback).ok());
    ASSERT_TRUE(client.Allreduce(names[rank], Floats(own), {}, &handle).ok());
    EXPECT_TRUE(client.Wait(handle, -1).ok());
    EXPECT_EQ(calls.Await(1), std::vector<Code>{Code::kOk});
  });
  EXPECT_FALSE(said_blocked);
}

// A callback, and an Adasum, submit on a thread of the client's own. It is no
// second user, because of which the rank would never count as blocked again.
TEST_F(ClientTest, ARankWhoseCallbackHasRunIsBlockedForCertain) {
  FakeExecutor executor("agent.sock", 2);
  std::atomic<int> waiting{0};
  std::atomic<bool> both_blocked{false};
  std::thread watcher([&] {
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (!both_blocked && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (waiting.load() < 2) continue;
      both_blocked = executor.board().rank(0).blocked_count.load() % 2 != 0 &&
                     executor.board().rank(1).blocked_count.load() % 2 != 0;
    }
    executor.Die();
  });
  Run(2, [&](int rank, Client& client) {
    std::vector<float> first(2, 1), next(2, 1), own(2, 1);
    Calls calls;
    int64_t handle;
    ASSERT_TRUE(client.Allreduce("first", Floats(first), {}, &handle).ok());
    const auto callback = [&](const Status&) {
      int64_t second;
      ASSERT_TRUE(client.Allreduce("next", Floats(next), {}, &second).ok());
      ASSERT_TRUE(client.OnDone(second, calls.Add()).ok());
    };
    ASSERT_TRUE(client.OnDone(handle, callback).ok());
    EXPECT_TRUE(client.Wait(handle, -1).ok());
    EXPECT_EQ(calls.Await(1), std::vector<Code>{Code::kOk});
    const std::string names[] = {"rank 0 waits", "rank 1 waits"};
    ASSERT_TRUE(client.Allreduce(names[rank], Floats(own), {}, &handle).ok());
    waiting.fetch_add(1);
    EXPECT_FALSE(client.Wait(handle, -1).ok());
  });
  watcher.join();
  EXPECT_TRUE(both_blocked);
}

// ThreadSanitizer sees if one uses the descriptor that the other has closed:
// nothing but Leave() orders the two.
TEST_F(ClientTest, AThreadMaySendWhileAnotherLeaves) {
  FakeExecutor executor("agent.sock", 2);
  std::barrier submitted(2);
  Run(2, [&](int rank, Client& client) {
    std::vector<float> x(2, 1);
    int64_t handle;
    const std::string name = "only on rank " + std::to_string(rank);
    EXPECT_TRUE(client.Allreduce(name, Floats(x), {}, &handle).ok());
    submitted.arrive_and_wait();
    if (rank == 1) {
      EXPECT_EQ(client.Wait(handle, -1).code(), Code::kAborted);
      return;
    }
    std::atomic<bool> left{false};
    std::thread other([&] {
      while (!left.load(std::memory_order_relaxed)) std::this_thread::yield();
      EXPECT_EQ(client.StartTimeline("t.json", false).code(), Code::kAborted);
    });
    client.Leave();
    left.store(true, std::memory_order_relaxed);
    other.join();
  });
}

// Waits until the thread sleeps for a time of its own, not for another thread.
void AwaitSleep(pid_t thread) {
  const std::string path =
      "/proc/self/task/" + std::to_string(thread) + "/syscall";
  long call = -1;
  while (call != SYS_clock_nanosleep) {
    std::this_thread::yield();
    if (!(std::ifstream(path) >> call)) call = -1;  // it runs
  }
}

// The executor reads nothing, so a rank tries for a while to say that it has
// finished. Nobody else waits for that.
TEST_F(ClientTest, ARankLeavesWhileItCannotSayThatItHasFinished) {
  FakeExecutor executor("agent.sock", 2);
  elastic_ = true;
  std::atomic<bool> leaving{false}, over{false};
  Run(2, [&](int rank, Client& client) {
    if (rank == 1) {
      while (!over.load()) std::this_thread::yield();
      return;
    }
    std::vector<float> x(2, 1);
    int64_t handle;
    ASSERT_TRUE(client.Allreduce("only here", Floats(x), {}, &handle).ok());
    executor.Hold(true);
    std::atomic<pid_t> thread{0};
    std::atomic<int> said{0};
    std::thread finishes([&] {
      thread.store(gettid());
      for (; !leaving.load(); said.fetch_add(1)) client.SetFinished(true);
    });
    while (thread.load() == 0) std::this_thread::yield();
    AwaitSleep(thread.load());
    const int before = said.load();
    leaving.store(true);
    std::thread leaves([&] { client.Leave(); });
    EXPECT_EQ(client.Wait(handle, -1).code(), Code::kAborted);
    EXPECT_EQ(said.load(), before);
    over.store(true);
    finishes.join();
    executor.Hold(false);
    leaves.join();
  });
}

TEST_F(ClientTest, LeavingReturnsAfterTheCallbacksOfAllOperations) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int rank, Client& client) {
    std::vector<float> x(2, 1), y(2, 1);
    Calls calls;
    int64_t handle, unmatched;
    ASSERT_TRUE(client
                    .Allreduce("only on rank " + std::to_string(rank),
                               Floats(y), {}, &unmatched)
                    .ok());
    ASSERT_TRUE(client.OnDone(unmatched, calls.Add()).ok());
    EXPECT_EQ(client.OnDone(unmatched, calls.Add()).code(),
              Code::kAlreadyExists);
    ASSERT_TRUE(
        client.Allreduce("x", Floats(x), {.op = Op::kSum}, &handle).ok());
    ASSERT_TRUE(client.Wait(handle, -1).ok());
    client.Leave();
    EXPECT_EQ(calls.Await(0), std::vector<Code>{Code::kAborted});
    // An operation that has ended is called for at once, after Leave(), too.
    ASSERT_TRUE(client.OnDone(handle, calls.Add()).ok());
    EXPECT_EQ(calls.Await(2).back(), Code::kOk);
  });
}

// The Adasum of orthogonal tensors is their sum, that of equal ones one of
// them; the members of a group have factors of their own.
TEST_F(ClientTest, AdasumInAllForms) {
  FakeExecutor executor("agent.sock", 3);
  Run(3, [](int rank, Client& client) {
    const auto signature = [](DType dtype, int64_t elements) {
      Signature s;
      s.kind = Kind::kAllreduce;
      s.dtype = dtype;
      s.op = Op::kAdasum;
      s.dims = 1;
      s.shape[0] = elements;
      return s;
    };
    for (int round = 0; round < 10; ++round) {
      std::vector<float> apart(7), in_place(1000, 3.f), none;
      std::vector<double> equal(5, 2.0), out(5);
      apart[rank] = static_cast<float>(rank + 1);
      std::vector<Request> group(4);
      group[0] = {"apart", signature(DType::kFloat32, 7), apart.data(),
                  apart.data()};
      group[1] = {"equal", signature(DType::kFloat64, 5), equal.data(),
                  out.data()};
      group[2] = {"in place", signature(DType::kFloat32, 1000), in_place.data(),
                  in_place.data()};
      group[3] = {"none", signature(DType::kFloat32, 0), none.data(),
                  none.data()};
      int64_t handles[4], unnamed;
      Calls calls;
      const Status s = client.SubmitGroup(group, handles);
      ASSERT_TRUE(s.ok()) << s.message();
      std::vector<float> scaled(2, 1.f);
      ASSERT_TRUE(
          client
              .Allreduce(
                  "", Floats(scaled),
                  {.op = Op::kAdasum, .prescale = 4.0, .postscale = -0.5},
                  &unnamed)
              .ok());
      ASSERT_TRUE(client.OnDone(unnamed, calls.Add()).ok());
      for (const int64_t handle : handles) {
        ASSERT_TRUE(client.Wait(handle, -1).ok());
        bool done = false;
        ASSERT_TRUE(client.Poll(handle, &done).ok());
        EXPECT_TRUE(done);
        Result result;
        ASSERT_TRUE(client.GetResult(handle, &result).ok());
        ASSERT_TRUE(client.Release(handle).ok());
      }
      EXPECT_EQ(calls.Await(1), std::vector<Code>{Code::kOk});
      ASSERT_TRUE(client.Release(unnamed).ok());
      EXPECT_EQ(apart, (std::vector<float>{1, 2, 3, 0, 0, 0, 0}));
      EXPECT_EQ(out, std::vector<double>(5, 2.0));
      EXPECT_EQ(equal, out);
      EXPECT_EQ(in_place, std::vector<float>(1000, 3.f));
      EXPECT_EQ(scaled, std::vector<float>(2, -2.f));
    }
    EXPECT_EQ(client.handles(), 0u);
    EXPECT_EQ(client.counters().completed.load(), 50);
  });
}

TEST_F(ClientTest, AdasumThatCannotBeIsAnErrorOfAllRanks) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int rank, Client& client) {
    const auto outcome = [&](const std::string& name, Tensor tensor,
                             ReduceOptions options) {
      options.op = Op::kAdasum;
      int64_t handle;
      if (Status s = client.Allreduce(name, tensor, options, &handle);
          !s.ok()) {
        return s;
      }
      const Status s = client.Wait(handle, -1);
      EXPECT_TRUE(client.Release(handle).ok());
      return s;
    };
    std::vector<float> x(12, 1.f);
    Status s =
        outcome("size", {DType::kFloat32, {10 + rank}, x.data(), x.data()}, {});
    EXPECT_EQ(s.code(), Code::kFailedPrecondition);
    EXPECT_NE(s.message().find("allreduce 'size': the shapes of ranks 1 and 0 "
                               "differ; this rank's are [1" +
                               std::to_string(rank) + "]"),
              std::string::npos)
        << s.message();
    s = outcome(
        "shape",
        {DType::kFloat32, {2 + rank * 2, 6 - rank * 3}, x.data(), x.data()},
        {});
    EXPECT_NE(s.message().find("the shapes of ranks 1 and 0"),
              std::string::npos)
        << s.message();
    s = outcome("factor", Floats(x), {.prescale = 1.0 + rank});
    EXPECT_EQ(s.code(), Code::kFailedPrecondition);
    EXPECT_NE(s.message().find("prescale factors"), std::string::npos)
        << s.message();
    EXPECT_TRUE(outcome("zero", Floats(x), {.prescale = 0.0}).ok());
    EXPECT_EQ(x, std::vector<float>(12, 0.f));
    std::vector<int32_t> n(3);
    s = outcome("n", {DType::kInt32, {3}, n.data(), n.data()}, {});
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_EQ(s.message(),
              "allreduce 'n': Adasum needs a floating point tensor, this one "
              "is int32");
    s = outcome(std::string(kMaxNameBytes, 'n'), Floats(x), {});
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_EQ(client.handles(), 0u);
  });
}

TEST_F(ClientTest, LeavingEndsAnAdasumAndItsCallback) {
  FakeExecutor executor("agent.sock", 2);
  std::barrier waited(2);
  Run(2, [&](int rank, Client& client) {
    std::vector<float> x(2, 1.f);
    Calls calls;
    int64_t handle;
    ASSERT_TRUE(client
                    .Allreduce("of rank " + std::to_string(rank), Floats(x),
                               {.op = Op::kAdasum}, &handle)
                    .ok());
    ASSERT_TRUE(client.OnDone(handle, calls.Add()).ok());
    EXPECT_EQ(client.Wait(handle, 1).code(), Code::kDeadlineExceeded);
    waited.arrive_and_wait();
    client.Leave();
    EXPECT_EQ(calls.threads().size(), 1u);
    EXPECT_EQ(calls.Await(1), std::vector<Code>{Code::kAborted});
    EXPECT_EQ(client.Wait(handle, -1).code(), Code::kAborted);
  });
}

TEST_F(ClientTest, AnExecutorsDeathEndsWaitsWithinABound) {
  auto executor = std::make_unique<FakeExecutor>("agent.sock", 2);
  std::atomic<bool> submitted{false};
  Run(2, [&](int rank, Client& client) {
    std::vector<float> v(1, 1.f);
    int64_t handle;
    if (rank == 1) {
      while (!submitted.load()) std::this_thread::yield();
      executor->Die();
      while (client.Barrier(&handle).ok()) {
        if (!client.Wait(handle, 50).ok()) break;
      }
      return;
    }
    ASSERT_TRUE(client.Allreduce("never", Floats(v), {}, &handle).ok());
    submitted.store(true);
    const auto start = Clock::now();
    const Status s = client.Wait(handle, 20000);
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
    EXPECT_EQ(s.code(), Code::kAborted) << s.message();
    EXPECT_NE(s.message().find("allreduce 'never': the executor"),
              std::string::npos)
        << s.message();
    EXPECT_FALSE(client.Allreduce("later", Floats(v), {}, &handle).ok());
  });
}

TEST_F(ClientTest, LeavingWithOperationsPendingEndsTheOthers) {
  FakeExecutor executor("agent.sock", 2);
  std::atomic<bool> submitted{false};
  Run(2, [&](int rank, Client& client) {
    std::vector<float> v(1, 1.f);
    int64_t a;
    const char* name = rank == 0 ? "mine" : "yours";
    ASSERT_TRUE(client.Allreduce(name, Floats(v), {}, &a).ok());
    if (rank == 0) submitted.store(true);
    if (rank == 1) {
      while (!submitted.load()) std::this_thread::yield();
      client.Leave();
      const Status s = client.Wait(a, 0);
      EXPECT_EQ(s.code(), Code::kAborted);
      EXPECT_NE(s.message().find("this rank has left"), std::string::npos);
      return;
    }
    const Status s = client.Wait(a, 20000);
    EXPECT_EQ(s.message(),
              "allreduce 'mine': rank 1 left with operations pending");
  });
}

TEST_F(ClientTest, WaitTimesOutAndTheOperationGoesOn) {
  FakeExecutor executor("agent.sock", 2);
  std::atomic<bool> timed_out{false};
  Run(2, [&](int rank, Client& client) {
    std::vector<float> v(1, 1.f);
    int64_t handle;
    if (rank == 1) {
      while (!timed_out.load()) std::this_thread::yield();
    }
    ASSERT_TRUE(
        client.Allreduce("x", Floats(v), {.op = Op::kSum}, &handle).ok());
    if (rank == 0) {
      EXPECT_EQ(client.Wait(handle, 10).code(), Code::kDeadlineExceeded);
      bool done = true;
      EXPECT_TRUE(client.Poll(handle, &done).ok());
      EXPECT_FALSE(done);
      timed_out.store(true);
    }
    EXPECT_TRUE(client.Wait(handle, -1).ok());
    EXPECT_EQ(v[0], 2.f);
    EXPECT_TRUE(client.Release(handle).ok());
    EXPECT_EQ(client.Wait(handle, 0).code(), Code::kNotFound);
  });
}

// Several threads of a rank wait; each drives for the others. After a lost
// wake-up a thread would sleep for the full 100 ms.
TEST_F(ClientTest, ThreadsOfARankWakeEachOther) {
  FakeExecutor executor("agent.sock", 2);
  std::atomic<int> slow{0};
  Run(2, [&](int, Client& client) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&client, &slow, t] {
        std::vector<float> v(1, 1.f);
        for (int i = 0; i < 3000; ++i) {
          int64_t handle;
          const auto start = Clock::now();
          ASSERT_TRUE(client
                          .Allreduce("t" + std::to_string(t), Floats(v),
                                     {.op = Op::kAverage}, &handle)
                          .ok());
          ASSERT_TRUE(client.Wait(handle, -1).ok());
          ASSERT_TRUE(client.Release(handle).ok());
          if (Clock::now() - start > std::chrono::milliseconds(90)) ++slow;
        }
      });
    }
    for (auto& t : threads) t.join();
  });
  // On a busy machine a thread may be without a core for that long sometimes;
  // lost wake-ups would be hundreds of the 18000.
  EXPECT_LE(slow.load(), 60);
}

// One thread leaves while another waits, with operations in every state.
TEST_F(ClientTest, LeavingWhileAnotherThreadWaitsIsSafe) {
  for (int round = 0; round < 20; ++round) {
    FakeExecutor executor("agent.sock", 2);
    Run(2, [&](int rank, Client& client) {
      std::vector<std::vector<float>> data(40, std::vector<float>(5000, 1.f));
      std::vector<int64_t> handles;
      for (size_t i = 0; i < data.size(); ++i) {
        int64_t h;
        if (client.Allreduce("x" + std::to_string(i), Floats(data[i]), {}, &h)
                .ok()) {
          handles.push_back(h);
        }
      }
      std::thread waiter([&] {
        for (int64_t h : handles) (void)client.Wait(h, -1);
      });
      if (rank == 0) client.Leave();
      waiter.join();
      EXPECT_EQ(client.pending(), 0);
    });
  }
}

TEST_F(ClientTest, ASlotOfAnotherNameIsRefused) {
  FakeExecutor executor("agent.sock", 1);
  executor.MixNames();
  Run(1, [](int, Client& client) {
    std::vector<float> v(1, 1.f);
    int64_t handle;
    ASSERT_TRUE(client.Allreduce("x", Floats(v), {}, &handle).ok());
    const Status s = client.Wait(handle, 20000);
    EXPECT_EQ(s.code(), Code::kInternal);
    EXPECT_EQ(s.message(),
              "allreduce 'x': the executor allotted slot 0, which belongs to "
              "another operation");
  });
}

// Both ranks are busy all the time, because the fake executor's chunks have
// only 4 KiB.
constexpr size_t kBigElements = 32 << 20;
constexpr auto kAtOnce = std::chrono::milliseconds(200);

TEST_F(ClientTest, AWaitEndsInTimeWhileABigTensorMoves) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int, Client& client) {
    std::vector<float> v(kBigElements, 1.f);
    int64_t handle;
    ASSERT_TRUE(
        client.Allreduce("big", Floats(v), {.op = Op::kSum}, &handle).ok());
    int late = 0;
    for (int i = 0; i < 3; ++i) {
      const auto start = Clock::now();
      const Status s = client.Wait(handle, 20);
      if (s.ok()) break;
      EXPECT_EQ(s.code(), Code::kDeadlineExceeded) << s.message();
      late += Clock::now() - start > kAtOnce ? 1 : 0;
      EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(20));
    }
    EXPECT_EQ(late, 0);
    ASSERT_TRUE(client.Wait(handle, -1).ok());
    EXPECT_EQ(v.front(), 2.f);
    EXPECT_EQ(v.back(), 2.f);
  });
}

// Of this thread, which moves the data while it waits. On a busy machine it may
// be without a core for longer.
std::chrono::nanoseconds CpuTime() {
  timespec t = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
}

TEST_F(ClientTest, AnInterruptibleWaitReturnsWhileABigTensorMoves) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int, Client& client) {
    std::vector<float> v(kBigElements, 1.f);
    int64_t handle;
    ASSERT_TRUE(
        client.Allreduce("big", Floats(v), {.op = Op::kSum}, &handle).ok());
    for (;;) {
      const auto start = CpuTime();
      const Status s = client.Wait(handle, kWaitInterruptible);
      EXPECT_LT(CpuTime() - start, kAtOnce);
      if (s.ok()) break;
      ASSERT_EQ(s.code(), Code::kCancelled) << s.message();
    }
    EXPECT_EQ(v.back(), 2.f);
  });
}

// Other threads of both ranks keep the progress engines busy for a second.
TEST_F(ClientTest, AWaitEndsInTimeWhileOtherOperationsMove) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [](int rank, Client& client) {
    std::atomic<bool> moving{false};
    std::thread traffic([&] {
      std::vector<float> v(250000, 1.f);
      const auto end = Clock::now() + std::chrono::seconds(1);
      for (bool more = true; more;) {
        // All ranks end with the same round.
        v[0] = Clock::now() < end ? 0.f : 1.f;
        int64_t handle;
        ASSERT_TRUE(
            client.Allreduce("traffic", Floats(v), {.op = Op::kMax}, &handle)
                .ok());
        ASSERT_TRUE(client.Wait(handle, -1).ok());
        ASSERT_TRUE(client.Release(handle).ok());
        more = v[0] == 0.f;
        moving.store(true);
      }
    });
    std::vector<float> v(1, 1.f);
    int64_t handle;
    if (rank == 0) {
      while (!moving.load()) std::this_thread::yield();
      ASSERT_TRUE(
          client.Allreduce("late", Floats(v), {.op = Op::kSum}, &handle).ok());
      const auto start = Clock::now();
      EXPECT_EQ(client.Wait(handle, 50).code(), Code::kDeadlineExceeded);
      EXPECT_LT(Clock::now() - start, kAtOnce);
    }
    traffic.join();
    if (rank == 1) {
      ASSERT_TRUE(
          client.Allreduce("late", Floats(v), {.op = Op::kSum}, &handle).ok());
    }
    ASSERT_TRUE(client.Wait(handle, -1).ok());
    EXPECT_EQ(v[0], 2.f);
  });
}

// Sanitizers need address space themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Leaves this process room for everything except a thread's stack. Returns its
// limit in bytes; 0: that failed.
rlim_t RefuseThreads() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, size_t{2} << 30);
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0) return 0;
  limit.rlim_cur = pages * PageBytes() + (1 << 30);
  return pthread_setattr_default_np(&attributes) == 0 &&
                 setrlimit(RLIMIT_AS, &limit) == 0
             ? limit.rlim_cur
             : 0;
}

TEST_F(ClientTest, WithoutAddressSpaceForAThreadInitFails) {
  const pid_t child = fork();
  if (child == 0) {
    const rlim_t most = RefuseThreads();
    if (most == 0) _exit(1);
    RankOptions o;
    o.job = "test";
    o.agent = "agent.sock";
    std::unique_ptr<Client> client;
    const Status s = Client::Join(o, &client);
    const std::string want =
        "cannot start a thread: Resource temporarily unavailable: the limit of "
        "this process's address space is " +
        std::to_string(most) + " bytes (ulimit -v)";
    if (s.message() != want) fprintf(stderr, "%s\n", s.message().c_str());
    _exit(s.message() == want && s.code() == Code::kResourceExhausted ? 0 : 2);
  }
  FakeExecutor executor("agent.sock", 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

void RefuseACallbackOnce() {
  std::unique_ptr<Client> client;
  ASSERT_TRUE(Client::Join(RankOptions{}, &client).ok());
  std::vector<float> v = {1, 2};
  int64_t handle;
  ASSERT_TRUE(client->Allreduce("x", Floats(v), {}, &handle).ok());
  Calls calls;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  ASSERT_NE(RefuseThreads(), 0);
  EXPECT_EQ(client->OnDone(handle, calls.Add()).code(),
            Code::kResourceExhausted);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_TRUE(client->Wait(handle, -1).ok());
  // Later there is memory. The callback that was refused is never called.
  EXPECT_TRUE(client->OnDone(handle, calls.Add()).ok());
  client->Leave();
  EXPECT_EQ(calls.Await(1), std::vector<Code>{Code::kOk});
}

TEST(LocalClientTest, WithoutMemoryForTheirThreadCallbacksAreRefused) {
  const pid_t child = fork();
  if (child == 0) {
    RefuseACallbackOnce();
    fflush(stdout);
    _exit(HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}
#endif

// Each callback that was accepted is called once, also if the operation ends
// while its next callback is given. In an old bug one took the other's place.
TEST(LocalClientTest, ACallbackAfterACallbackIsNotLost) {
  struct Counter : CompletionQueue {
    void Push(std::unique_ptr<Completion> completion) override {
      if (completion != nullptr) completion->call(*completion->operation);
    }
  };
  const auto queue = std::make_shared<Counter>();
  for (int round = 0; round < 20000; ++round) {
    const auto op = std::make_shared<Operation>();
    std::atomic<int> accepted = 0, called = 0;
    std::atomic<bool> waits = false;
    const auto call = [&] {
      if (op->WhenDone(queue, std::make_unique<Completion>(
                                  op, [&](const Operation&) { ++called; }))) {
        ++accepted;
      }
    };
    call();
    std::thread end([&] {
      waits = true;
      op->SetDone();
    });
    while (!waits) std::this_thread::yield();
    while (accepted < 3) call();
    end.join();
    ASSERT_EQ(called, accepted) << "in round " << round;
  }
}

TEST(LocalClientTest, AJobOfOneRankNeedsNoAgent) {
  std::unique_ptr<Client> client;
  ASSERT_TRUE(Client::Join(RankOptions{}, &client).ok());
  std::vector<float> v = {1, 2}, out(2);
  int64_t handle;
  Tensor t{DType::kFloat32, {2}, v.data(), out.data()};
  ASSERT_TRUE(
      client->Allreduce("x", t, {.op = Op::kSum, .postscale = 3}, &handle)
          .ok());
  EXPECT_TRUE(client->Wait(handle, -1).ok());
  EXPECT_EQ(out, (std::vector<float>{3, 6}));
  Tensor g{DType::kFloat32, {2}, v.data(), nullptr};
  ASSERT_TRUE(client->Allgather("g", g, &handle).ok());
  Result r;
  ASSERT_TRUE(client->GetResult(handle, &r).ok());
  EXPECT_EQ(r.first_dim, 2);
  EXPECT_EQ(static_cast<float*>(r.data)[1], 2.f);
  EXPECT_EQ(client->Broadcast("b", t, 1, &handle).code(),
            Code::kInvalidArgument);
}

TEST(LocalClientTest, ACallbackMayDestroyTheClient) {
  std::unique_ptr<Client> client;
  ASSERT_TRUE(Client::Join(RankOptions{}, &client).ok());
  std::vector<float> v = {1, 2};
  int64_t handle;
  ASSERT_TRUE(client->Allreduce("x", Floats(v), {}, &handle).ok());
  Calls calls;
  ASSERT_TRUE(client
                  ->OnDone(handle,
                           [&](const Status& s) {
                             client.reset();
                             calls.Add()(s);
                           })
                  .ok());
  EXPECT_EQ(calls.Await(1), std::vector<Code>{Code::kOk});
  EXPECT_EQ(client, nullptr);
}

TEST(LocalClientTest, ARankAloneSharesNoGpuMemory) {
  std::unique_ptr<Client> client;
  ASSERT_TRUE(Client::Join(RankOptions{}, &client).ok());
  void* memory = nullptr;
  const Status s = client->AllocateOnGpu(1, 0, &memory);
  EXPECT_EQ(s.code(), Code::kResourceExhausted);
  EXPECT_EQ(s.message(),
            "this rank is alone on its node, and GPUs of other nodes cannot be "
            "used together with its own, so that no memory of GPUs is shared");
  EXPECT_EQ(memory, nullptr);
  EXPECT_TRUE(Client::FreeOnGpu(nullptr, {}).ok());
}

TEST(LocalClientTest, SplitsAreForAlltoallOnly) {
  std::unique_ptr<Client> client;
  ASSERT_TRUE(Client::Join(RankOptions(), &client).ok());
  std::vector<float> v = {1, 2};
  Request request{.name = "x", .input = v.data(), .output = v.data()};
  request.signature.kind = Kind::kAllreduce;
  request.signature.dtype = DType::kFloat32;
  request.signature.dims = 1;
  request.signature.shape[0] = 2;
  request.splits = {2};
  int64_t handle;
  const Status s = client->Submit(request, &handle);
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(s.message(), "allreduce 'x': splits are for alltoall only");
  request.signature.kind = Kind::kAlltoall;
  ASSERT_TRUE(client->Submit(request, &handle).ok());
  Result result;
  ASSERT_TRUE(client->GetResult(handle, &result).ok());
  EXPECT_EQ(result.first_dim, 2);
  EXPECT_EQ(result.received_splits, std::vector<int64_t>{2});
  EXPECT_TRUE(client->Release(handle).ok());
}

}  // namespace
}  // namespace maypole
