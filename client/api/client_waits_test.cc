#include <sys/syscall.h>
#include <time.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <set>

#include "client/testing/client_ranks.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

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

// Several threads of a rank wait, and each drives for the others. After a lost
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
  // On a busy machine a thread may sometimes lack a core for that long; lost
  // wake-ups would be hundreds of the 18000.
  EXPECT_LE(slow.load(), 60);
}

std::set<pid_t> ThreadsHere() {
  std::set<pid_t> all;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    all.insert(std::stoi(task.path().filename()));
  }
  return all;
}

// The number of times these threads have gone to sleep.
uint64_t TimesAsleep(const std::set<pid_t>& threads) {
  const std::string key = "voluntary_ctxt_switches:";
  uint64_t sum = 0;
  for (const pid_t thread : threads) {
    std::ifstream status("/proc/self/task/" + std::to_string(thread) +
                         "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(key)) sum += std::stoull(line.substr(key.size()));
    }
  }
  return sum;
}

// The other ranks wake a rank that sleeps in a wait for each operation. Its
// progress thread has nothing to do then, and must not be woken with it.
TEST_F(ClientTest, TheProgressThreadIsNotWokenWithAThreadThatWaits) {
  constexpr int kOperations = 300;
  FakeExecutor executor("agent.sock", 2);
  std::set<pid_t> others = ThreadsHere();  // than progress threads
  std::mutex mutex;
  std::barrier both(2);
  Run(2, [&](int rank, Client& client) {
    {
      std::lock_guard lock(mutex);
      others.insert(static_cast<pid_t>(syscall(SYS_gettid)));
    }
    both.arrive_and_wait();
    std::set<pid_t> progress;
    for (const pid_t t : ThreadsHere()) {
      if (!others.contains(t)) progress.insert(t);
    }
    EXPECT_EQ(progress.size(), 2u);
    const uint64_t before = TimesAsleep(progress);
    std::vector<float> v(1, 1.f);
    for (int i = 0; i < kOperations; ++i) {
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      int64_t handle;
      ASSERT_TRUE(client
                      .Allreduce("x", Floats(v),
                                 {.op = Op::kAverage, .awaited = true}, &handle)
                      .ok());
      ASSERT_TRUE(client.Wait(handle, -1).ok());
      ASSERT_TRUE(client.Release(handle).ok());
    }
    // Progress threads check the board every 100 ms anyway.
    EXPECT_LT(TimesAsleep(progress) - before, kOperations / 3);
    both.arrive_and_wait();
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

// CPU time of this thread, which moves the data while it waits. On a busy
// machine it may lack a core for longer.
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

// ThreadSanitizer notices if one thread uses the descriptor that the other has
// closed: only Leave() orders the two.
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

// Waits until the thread is in a timed sleep, not waiting for another thread.
void AwaitSleep(pid_t thread) {
  const std::string path =
      "/proc/self/task/" + std::to_string(thread) + "/syscall";
  long call = -1;
  while (call != SYS_clock_nanosleep) {
    std::this_thread::yield();
    if (!(std::ifstream(path) >> call)) call = -1;  // it runs
  }
}

// The executor reads nothing, so a rank tries for a while to report that it has
// finished. No other thread may have to wait for that.
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

}  // namespace
}  // namespace maypole
