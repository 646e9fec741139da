// Fake GPUs in threads mode: hosts, other processes and deaths act while
// streams run.
#include <atomic>
#include <chrono>
#include <thread>

#include "worker/backend/gpu/testing/fake_testing.h"

namespace maypole::gpu {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class FakeThreadsTest : public testing::Test {
 protected:
  const std::shared_ptr<FakeMachine> machine_ = Threaded();
  TestProcess a_{machine_}, b_{machine_};
  Gpu& gpu_ = *a_.gpu;
  const Stream stream_ = a_.stream;
};

// By the host, beside streams.
void Write(Address flag, uint64_t value) {
  std::atomic_ref<uint64_t>(*At<uint64_t>(flag)) = value;
}
uint64_t Read(Address flag) {
  return std::atomic_ref<uint64_t>(*At<uint64_t>(flag)).load();
}

TEST_F(FakeThreadsTest, TheHostReleasesAWaitingStream) {
  HostPages page;
  const Address flag = gpu_.RegisterHost(page.data(), page.bytes()).value();
  EXPECT_OK(gpu_.WaitValue(stream_, flag, 1));
  EXPECT_OK(gpu_.WriteValue(stream_, flag + 8, 2));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(gpu_.Done(stream_).value());
  EXPECT_EQ(Read(flag + 8), 0u);
  EXPECT_REFUSED(gpu_.UnregisterHost(page.data()), kFailedPrecondition,
                 "has not done all");
  Write(flag, 1);
  EXPECT_OK(gpu_.Synchronize(stream_));
  EXPECT_EQ(Read(flag + 8), 2u);
  EXPECT_OK(gpu_.UnregisterHost(page.data()));
  EXPECT_FALSE(machine_->Step());  // not stepped
}

TEST_F(FakeThreadsTest, FreeWaitsForTheWork) {
  const Address flag = a_.Allocate(), x = a_.Allocate();
  Write(flag, 0);
  EXPECT_OK(gpu_.WaitValue(stream_, flag, 1));
  EXPECT_OK(gpu_.Fill(stream_, x, 1, 2 * kMiB / 4));
  std::atomic<bool> freed = false;
  std::thread thread([&] {
    EXPECT_OK(gpu_.Free(x));
    freed = true;
  });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(freed);
  Write(flag, 1);
  thread.join();
  EXPECT_TRUE(gpu_.Done(stream_).value());
}

TEST_F(FakeThreadsTest, ManyStreamsWaitCrosswise) {
  constexpr uint64_t kPairs = 32;
  const Address flags = a_.Allocate();
  memset(At<void>(flags), 0, 4096);
  const Address flags_b = b_.ImportedFrom(a_, flags, 2 * kMiB);
  std::vector<Stream> streams_a, streams_b;
  for (uint64_t i = 0; i < kPairs; ++i) {
    const uint64_t one = 16 * i, other = one + 8;
    streams_a.push_back(gpu_.CreateStream().value());
    EXPECT_OK(gpu_.WaitValue(streams_a[i], flags + one, 1));
    EXPECT_OK(gpu_.WriteValue(streams_a[i], flags + other, 1));
    streams_b.push_back(b_.gpu->CreateStream().value());
    EXPECT_OK(b_.gpu->WriteValue(streams_b[i], flags_b + one, 1));
    EXPECT_OK(b_.gpu->WaitValue(streams_b[i], flags_b + other, 1));
  }
  for (const Stream s : streams_a) EXPECT_OK(gpu_.DestroyStream(s));
  for (const Stream s : streams_b) EXPECT_OK(b_.gpu->DestroyStream(s));
  EXPECT_EQ(Read(flags + 16 * kPairs - 8), 1u);
}

TEST_F(FakeThreadsTest, ASpinTakesItsTimeAndADelayToo) {
  const Event begin = gpu_.CreateEvent(EventUse::kTiming).value();
  const Event end = gpu_.CreateEvent(EventUse::kTiming).value();
  EXPECT_OK(gpu_.Record(begin, stream_));
  EXPECT_OK(gpu_.Spin(stream_, 1, 20'000'000));
  EXPECT_OK(gpu_.Record(end, stream_));
  EXPECT_OK(gpu_.Synchronize(stream_));
  EXPECT_GE(gpu_.Milliseconds(begin, end).value(), 20);
  EXPECT_REFUSED(a_.driver->DelayNext("Record", 3), kInvalidArgument,
                 "only a stepped machine");
  EXPECT_OK(a_.driver->DelayNext("Record", milliseconds(30)));
  const auto before = Clock::now();
  EXPECT_OK(gpu_.Record(end, stream_));
  EXPECT_FALSE(gpu_.EventDone(end).value());
  EXPECT_OK(gpu_.Synchronize(stream_));
  EXPECT_GE(Clock::now() - before, milliseconds(30));
}

TEST_F(FakeThreadsTest, AKillEndsWhatRunsAndWhoWaitsForIt) {
  const uint64_t bytes = 256 * kMiB;
  const Address of_a = a_.Allocate(bytes);
  const Address x = b_.ImportedFrom(a_, of_a, bytes);
  const Address flag = x + 8;
  Write(flag, 0);
  EXPECT_OK(gpu_.Copy(stream_, of_a + bytes / 2, of_a, bytes / 2));
  EXPECT_OK(gpu_.WaitValue(stream_, of_a + 8, 1));
  std::atomic<bool> ended = false;
  std::thread waits([&] {
    EXPECT_REFUSED(gpu_.Synchronize(stream_), kInternal, "");
    ended = true;
  });
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_FALSE(ended);
  a_.driver->Kill();
  waits.join();
  EXPECT_REFUSED(gpu_.Done(stream_), kInternal, "killed");
  EXPECT_EQ(b_.Taken(), bytes);
  EXPECT_EQ(*At<uint64_t>(x), 0xa5a5a5a5a5a5a5a5u);
  EXPECT_OK(b_.gpu->Fill(b_.stream, x, 1, bytes / 4));
  EXPECT_OK(b_.gpu->Free(x));
  EXPECT_EQ(b_.Taken(), 0u);
}

TEST_F(FakeThreadsTest, ALostContextEndsAWait) {
  const Address flag = a_.Allocate();
  EXPECT_OK(gpu_.WaitValue(stream_, flag, 1, WaitFor::kEqual));
  std::thread loses([&] {
    std::this_thread::sleep_for(milliseconds(10));
    a_.driver->LoseContext();
  });
  EXPECT_REFUSED(gpu_.Synchronize(stream_), kInternal, "");
  loses.join();
  EXPECT_EQ(b_.Taken(), 2 * kMiB);
}

TEST_F(FakeThreadsTest, AGpuIsDestroyedWhateverItsStreamsWaitFor) {
  auto third = std::make_unique<TestProcess>(machine_);
  const Address flag = third->Allocate();
  EXPECT_OK(third->gpu->WaitValue(third->stream, flag, 1, WaitFor::kEqual));
  third.reset();
  EXPECT_EQ(b_.Taken(), 0u);
}

TEST_F(FakeThreadsTest, CallsOfManyThreadsAndAKill) {
  std::atomic<bool> killed = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (true) {
        const absl::StatusOr<Memory> memory = gpu_.Allocate(4096);
        const absl::StatusOr<Stream> stream = gpu_.CreateStream();
        if (!memory.ok() || !stream.ok()) break;
        const bool all =
            gpu_.Fill(*stream, memory->address, 5, 16).ok() &&
            gpu_.Copy(*stream, memory->address + 64, memory->address, 64)
                .ok() &&
            gpu_.DestroyStream(*stream).ok() && gpu_.Free(memory->address).ok();
        if (!all) break;
      }
      EXPECT_TRUE(killed);
    });
  }
  std::this_thread::sleep_for(milliseconds(100));
  killed = true;
  a_.driver->Kill();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(b_.Taken(), 0u);
}

}  // namespace
}  // namespace maypole::gpu
