#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <fstream>

#include "client/testing/client_ranks.h"

namespace maypole {
namespace {

using Clock = std::chrono::steady_clock;

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

// The executor's answer to a new name may come before submit() returns. An old
// bug left it unread until the progress thread's sleep of a second was over.
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

// Each rank waits for an operation that only the other's slow callback submits:
// that is no deadlock.
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

// Callbacks and Adasums submit on a thread of the client. It must not count as
// a second user: then the rank would never count as blocked again.
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
    // The callback of an operation that has ended is called at once, even after
    // Leave().
    ASSERT_TRUE(client.OnDone(handle, calls.Add()).ok());
    EXPECT_EQ(calls.Await(2).back(), Code::kOk);
  });
}

// Each callback that was accepted is called once, even if the operation ends
// while its next callback is passed. In an old bug one replaced the other.
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

// Sanitizers need address space themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Leaves this process address space for everything except a thread's stack.
// Returns the new limit in bytes; 0 on failure.
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
  // Later there is memory again. The refused callback is never called.
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

}  // namespace
}  // namespace maypole
