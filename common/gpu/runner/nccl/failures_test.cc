// What happens to runs when NCCL fails, blocks forever, or is aborted. The
// environment's configuration of the fake NCCL matches the test's name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "common/gpu/runner/testing/collective_fixture.h"

namespace maypole {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Clock = std::chrono::steady_clock;

class FailuresTest : public CollectiveFixture {
 protected:
  FailuresTest() {
    timeouts_.connect = milliseconds(300);
    timeouts_.abort = milliseconds(300);
  }
  void Run(uint32_t slot, uint32_t number = 1) {
    runner().Run(RunOf(number, OperationOf({.elements = 10}, slot, 0)));
  }
  std::string Text(uint32_t slot) {
    const Status s = Ended(slot);
    EXPECT_FALSE(s.ok());
    return std::string(s.message());
  }
};

// --- MAYPOLE_FAKE_NCCL= ------------------------------------------------------

class Plain : public FailuresTest {};

TEST_F(Plain, ThereIsNoNccl) {
  nccl_library_ = "/nowhere/libnccl.so.2";
  NewRunner();
  OpenRanks(1);
  const auto id = NewId(1);
  EXPECT_THAT(std::string(id.status().message()),
              AllOf(HasSubstr("NCCL cannot be loaded: /nowhere/libnccl.so.2"),
                    testing::Not(HasSubstr("\n"))));
  Connect(1, std::string(128, 'x'));
  Run(0);
  EXPECT_EQ(Ended(0).message(), id.status().message());
  runner().Run(SumOf({{0, 1}}, 10, 1));
  EXPECT_TRUE(Ended(1).ok());
}

TEST_F(Plain, APeerThatDoesNotConnectIsWaitedForOnlySoLong) {
  OpenRanks(1);
  Connect(1, *NewId(1), /*size=*/3);
  std::this_thread::sleep_for(timeouts_.connect);
  const auto begin = Clock::now();
  Run(0);
  EXPECT_EQ(Text(0),
            "NCCL has not connected the 3 GPUs of communicator 1 within 300 "
            "ms; here NCCL rank 0 on GPU-" +
                Text(0).substr(Text(0).find("GPU-") + 4));
  EXPECT_GE(Clock::now() - begin, milliseconds(250));
  Run(1);
  EXPECT_EQ(Ended(1).message(), Ended(0).message());
  // Others continue.
  Connect(2);
  Run(2, 2);
  EXPECT_TRUE(Ended(2).ok()) << Ended(2).message();
}

TEST_F(Plain, AbortEndsWhatHasNotBegun) {
  timeouts_.connect = kConnectTimeout;
  NewRunner();
  OpenRanks(1);
  Connect(1, *NewId(1), /*size=*/3);
  const uint64_t begun = NcclCalls("ncclCommInitRankConfig");
  Run(0);
  Run(1, 2);
  EXPECT_TRUE(Becomes(
      [=] { return NcclCalls("ncclCommInitRankConfig") == begun + kGpus; }));
  EXPECT_THAT(EndedSlots(), IsEmpty());
  const auto begin = Clock::now();
  runner().Abort();
  EXPECT_EQ(Text(0), "the epoch is over");
  EXPECT_EQ(Text(1), "the epoch is over");
  EXPECT_LT(Clock::now() - begin, milliseconds(200));
  // And all later ones.
  Run(2);
  EXPECT_EQ(Text(2), "the epoch is over");
  EXPECT_THAT(std::string(OpenNow({0, 2}, memory(0)).status().message()),
              HasSubstr("the epoch is over"));
  runner().Abort();
  DestroyRunner();
  EXPECT_THAT(stuck(), IsEmpty());
}

TEST_F(Plain, AbortEndsRunsOnOneGpuWhenTheyAreDone) {
  OpenRanks(1);
  hooks().Hold();
  const int launches = hooks().launches;
  runner().Run(SumOf({{0, 1}}, 10, 0));
  EXPECT_TRUE(Becomes([=] { return hooks().launches > launches; }));
  runner().Abort();
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_FALSE(HasEnded(0));
  hooks().Release();
  EXPECT_EQ(Text(0), "the epoch is over");
  EXPECT_THAT(stuck(), IsEmpty());
}

TEST_F(Plain, AbortWaitsForTheGpuOnlySoLong) {
  OpenRanks(1);
  hooks().Hold();
  const int launches = hooks().launches;
  runner().Run(SumOf({{0, 1}}, 10, 0));
  EXPECT_TRUE(Becomes([=] { return hooks().launches > launches; }));
  const auto begin = Clock::now();
  runner().Abort();
  EXPECT_EQ(Text(0), "the epoch is over");
  EXPECT_GE(Clock::now() - begin, milliseconds(300));
  const int mapped = hooks().mapped;
  runner().Close(0);
  std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(hooks().mapped, mapped);  // the GPU still uses it
  hooks().Release();
  EXPECT_TRUE(Becomes([=] { return hooks().mapped == mapped - 1; }));
  EXPECT_THAT(EndedSlots(), ElementsAre(0));
}

// --- Two nodes in one process: a runner for each GPU ------------------------

class Peers : public FailuresTest {
 protected:
  // GPU 0 is the fixture's runner's, GPU 1 the other's.
  void Meet(uint32_t communicators) {
    mine_ = Create(kBytes, 0);
    ASSERT_TRUE(OpenNow({0, 1}, mine_).ok());
    peers_ = Create(kBytes, 1);
    peer_ = std::make_unique<GpuRunner>(
        EpochGpus::Callbacks{
            .on_opened = [this](GpuMemoryId,
                                auto opened) { opened_ = opened.ok(); },
            .on_ended = [this](const GpuRun&, Status) { ++ended_; },
            .on_communicator_id = {},
            .on_abort_stuck = {}},
        nccl_library_, timeouts_);
    peer_->Open(
        {0, 1},
        RequestOf(session::GpuSharing::kDescriptor, kBytes, 1, UuidOf(1)),
        peers_.Export());
    ASSERT_TRUE(Becomes([this] { return opened_.load(); }));
    for (uint32_t n = 1; n <= communicators; ++n) {
      const std::string id = *NewId(n);
      runner().Connect({.number = n, .size = 2, .first = 0, .gpus = {0}}, id);
      peer_->Connect({.number = n, .size = 2, .first = 1, .gpus = {1}}, id);
    }
  }
  void TearDown() override {
    peer_.reset();
    FailuresTest::TearDown();
  }
  // Both run a sum, so that the communicator is connected and can launch.
  void RunBoth(uint32_t number, uint32_t slot) {
    runner().Run(SumWith(number, slot));
    RunPeer(number, slot);
    EXPECT_TRUE(Ended(slot).ok()) << Ended(slot).message();
  }
  // Runs a sum without the peer, and waits until it is on the stream.
  void RunWithoutPeer(uint32_t number, uint32_t slot) {
    const uint64_t collectives = NcclCalls("ncclAllReduce");
    runner().Run(SumWith(number, slot));
    EXPECT_TRUE(
        Becomes([=] { return NcclCalls("ncclAllReduce") == collectives + 1; }));
    // What follows waits until NCCL has put it there.
    const int launches = hooks().launches;
    runner().Run(SumOf({{0, 1}}, 10, slot + kBehind));
    EXPECT_TRUE(Becomes([=] { return hooks().launches == launches + 1; }));
  }
  static constexpr uint32_t kBehind = 100;
  static GpuRun SumWith(uint32_t number, uint32_t slot, uint32_t gpu = 0) {
    GpuRun run = SumOf({{0, 1}}, 1000, slot);
    run.communicator = number;
    run.operations[0].tensors[0].gpu = gpu;
    return run;
  }
  void RunPeer(uint32_t number, uint32_t slot) {
    peer_->Run(SumWith(number, slot, 1));
  }

  RankMemory mine_, peers_;
  std::unique_ptr<GpuRunner> peer_;
  std::atomic<bool> opened_ = false;
  std::atomic<int> ended_ = 0;
};

TEST_F(Peers, Add) {
  Meet(2);
  mine_.Write(0, Floats(1, 1000));
  peers_.Write(0, Floats(2, 1000));
  for (uint32_t i = 0; i < 6; ++i) {
    runner().Run(SumWith(1 + i % 2, i));
    RunPeer(1 + i % 2, i);
  }
  for (uint32_t i = 0; i < 6; ++i)
    EXPECT_TRUE(Ended(i).ok()) << Ended(i).message();
  EXPECT_TRUE(Becomes([this] { return ended_ == 6; }));
  EXPECT_EQ(mine_.Read(0, 4000), Floats(96, 1000));
  EXPECT_EQ(peers_.Read(0, 4000), Floats(96, 1000));
}

TEST_F(Peers, ACommunicatorConnectsWhenNoCollectiveRuns) {
  Meet(2);
  RunBoth(1, 0);
  RunWithoutPeer(1, 1);
  const uint64_t begun = NcclCalls("ncclCommInitRankConfig");
  runner().Run(SumWith(2, 2));
  const int launches = hooks().launches;
  runner().Run(SumOf({{0, 1}}, 10, 3));  // does not wait for it
  EXPECT_TRUE(Becomes([=] { return hooks().launches == launches + 1; }));
  // The time limit does not count yet.
  std::this_thread::sleep_for(timeouts_.connect + milliseconds(50));
  Settle();
  EXPECT_EQ(NcclCalls("ncclCommInitRankConfig"), begun);
  EXPECT_THAT(EndedSlots(), ElementsAre(0));
  RunPeer(1, 1);
  RunPeer(2, 2);
  EXPECT_TRUE(Ended(1).ok()) << Ended(1).message();
  EXPECT_TRUE(Ended(2).ok()) << Ended(2).message();
  EXPECT_EQ(NcclCalls("ncclCommInitRankConfig"), begun + 2);
}

TEST_F(Peers, AbortBeforeACommunicatorConnects) {
  Meet(2);
  RunBoth(1, 0);
  RunWithoutPeer(1, 1);
  const uint64_t begun = NcclCalls("ncclCommInitRankConfig");
  runner().Run(SumWith(2, 2));
  Settle();
  const auto begin = Clock::now();
  runner().Abort();
  EXPECT_EQ(Text(1), "the epoch is over");
  EXPECT_EQ(Text(2), "the epoch is over");
  EXPECT_LT(Clock::now() - begin, milliseconds(250));
  EXPECT_EQ(NcclCalls("ncclCommInitRankConfig"), begun);
  DestroyRunner();
  EXPECT_THAT(stuck(), IsEmpty());
}

// The first run waits on the GPU, where NCCL's kernel is; the others before it.
TEST_F(Peers, AbortOfTwoBusyCommunicatorsWhosePeerNeverComes) {
  Meet(2);
  RunBoth(1, 0);
  RunBoth(2, 1);
  for (uint32_t i = 2; i < 6; ++i) RunWithoutPeer(1 + i % 2, i);
  EXPECT_THAT(EndedSlots(), ElementsAre(0, 1));
  const auto begin = Clock::now();
  runner().Abort();
  for (uint32_t i = 2; i < 6; ++i) EXPECT_EQ(Text(i), "the epoch is over");
  EXPECT_LT(Clock::now() - begin, milliseconds(250));
  EXPECT_THAT(stuck(), IsEmpty());
  // The stream is empty again, and the memory can be released.
  const int mapped = hooks().mapped;
  runner().Close(0);
  EXPECT_TRUE(Becomes([=] { return hooks().mapped == mapped - 1; }));
}

TEST_F(Peers, AbortWhileNcclLaunches) {
  Meet(1);
  // The peer connects, but cannot do this.
  GpuRun too_much = SumWith(1, 0);
  too_much.operations[0].elements = kBytes;
  peer_->Run(too_much);
  // The first collective waits for its peer before it is on the stream.
  const uint64_t collectives = NcclCalls("ncclAllReduce");
  runner().Run(SumWith(1, 0));
  EXPECT_TRUE(
      Becomes([=] { return NcclCalls("ncclAllReduce") == collectives + 1; }));
  EXPECT_TRUE(Becomes([this] { return ended_ == 1; }));
  const int launches = hooks().launches;
  runner().Run(SumOf({{0, 1}}, 10, 1));  // held back
  Settle();
  EXPECT_EQ(hooks().launches, launches);
  EXPECT_THAT(EndedSlots(), IsEmpty());
  runner().Abort();
  EXPECT_EQ(Text(0), "the epoch is over");
  EXPECT_EQ(Text(1), "the epoch is over");
  EXPECT_THAT(stuck(), IsEmpty());
}

// The runner's thread is in a call of the driver, and cannot abort anything.
TEST_F(Peers, AbortWhileTheDriverHangs) {
  Meet(1);
  RunBoth(1, 0);
  hooks().launch_hangs = true;
  runner().Run(SumOf({{0, 1}}, 10, 1));
  EXPECT_TRUE(Becomes([] { return hooks().hanging_launches == 1; }));
  runner().Abort();
  EXPECT_TRUE(Becomes([this] { return stuck().size() == 1; }));
  EXPECT_FALSE(HasEnded(1));
  hooks().launch_hangs = false;
  EXPECT_EQ(Text(1), "the epoch is over");
}

TEST_F(Peers, TheDestructorAborts) {
  Meet(1);
  RunBoth(1, 0);
  RunWithoutPeer(1, 1);
  const auto begin = Clock::now();
  DestroyRunner();
  EXPECT_LT(Clock::now() - begin, milliseconds(500));
  EXPECT_THAT(EndedSlots(), ElementsAre(0));
  EXPECT_THAT(stuck(), IsEmpty());
}

// An error of the GPU under a collective ends the other communicators' waits.
TEST_F(Peers, AnErrorOfTheGpu) {
  Meet(2);
  RunBoth(1, 0);
  RunBoth(2, 1);
  RunWithoutPeer(1, 2);
  RunWithoutPeer(2, 3);
  EXPECT_THAT(EndedSlots(), ElementsAre(0, 1));
  EXPECT_TRUE(Becomes([this] { return ended_ == 2; }));  // asks no more
  hooks().query_error = cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_THAT(Text(2), HasSubstr("cuEventQuery: "));
  EXPECT_EQ(Ended(3).message(), Ended(2).message());
  runner().Run(SumOf({{0, 1}}, 10, 4));
  EXPECT_EQ(Ended(4).message(), Ended(2).message());
  // NCCL's kernels have ended; otherwise the memory could not be released.
  const int mapped = hooks().mapped;
  runner().Close(0);
  EXPECT_TRUE(Becomes([=] { return hooks().mapped == mapped - 1; }));
  EXPECT_THAT(stuck(), IsEmpty());
}

// --- init=hang, init=error, fail=... -----------------------------------------

class InitHangs : public FailuresTest {};

TEST_F(InitHangs, UntilTheDeadline) {
  OpenRanks(1);
  Connect(1);
  Run(0);
  EXPECT_THAT(Text(0), HasSubstr("NCCL has not connected the 2 GPUs"));
  runner().Abort();
  DestroyRunner();
  EXPECT_THAT(stuck(), IsEmpty());
}

class InitFails : public FailuresTest {};

TEST_F(InitFails, WithNcclsText) {
  OpenRanks(1);
  Connect(1);
  Run(0);
  EXPECT_THAT(Text(0),
              AllOf(HasSubstr("NCCL: unhandled system error"),
                    HasSubstr("init=error"), HasSubstr(", NCCL rank "),
                    HasSubstr(" on GPU-"), testing::Not(HasSubstr("\n"))));
}

class IdFails : public FailuresTest {};

TEST_F(IdFails, WithNcclsText) {
  OpenRanks(1);
  EXPECT_THAT(std::string(NewId(1).status().message()),
              HasSubstr("ncclGetUniqueId: internal error"));
  EXPECT_TRUE(NewId(2).ok());
}

class CallFails : public FailuresTest {};

TEST_F(CallFails, WithNcclsText) {
  OpenRanks(1);
  Connect(1);
  Run(0);
  EXPECT_THAT(Text(0), AllOf(HasSubstr("ncclAllReduce: internal error"),
                             HasSubstr(", NCCL rank 0 on GPU-")));
  Run(1);
  EXPECT_EQ(Ended(1).message(), Ended(0).message());
}

// The third call is for the second run's first GPU; both GPUs get its error.
class FailsLater : public FailuresTest {};

TEST_F(FailsLater, AndAllRunsWithIt) {
  OpenRanks(1);
  Connect(1);
  Run(0);
  EXPECT_TRUE(Ended(0).ok()) << Ended(0).message();
  Run(1);
  Run(2);
  EXPECT_THAT(Text(1), AllOf(HasSubstr("NCCL: unhandled cuda error"),
                             HasSubstr(", NCCL rank "), HasSubstr(" on GPU-")));
  EXPECT_EQ(Ended(2).message(), Ended(1).message());
  EXPECT_THAT(stuck(), IsEmpty());
}

class TooOld : public FailuresTest {};

TEST_F(TooOld, SaysWhichVersionIsWhere) {
  OpenRanks(1);
  const std::string text(NewId(1).status().message());
  EXPECT_THAT(text, AllOf(HasSubstr("NCCL 2.17.1 at "),
                          HasSubstr("/libnccl.so.2 is too old; it must be "
                                    "2.18.0 or newer")));
}

// --- abort=hang, abort=device ------------------------------------------------

class AbortHangs : public FailuresTest {};

TEST_F(AbortHangs, IsReported) {
  leaks_ = true;
  OpenRanks(1);
  Connect(1);
  Run(0);
  EXPECT_TRUE(Ended(0).ok()) << Ended(0).message();
  const int mapped = hooks().mapped;
  const auto begin = Clock::now();
  runner().Abort();
  EXPECT_TRUE(Becomes([this] { return !stuck().empty(); }));
  EXPECT_GE(Clock::now() - begin, milliseconds(300));
  EXPECT_THAT(stuck(),
              ElementsAre("NCCL has not given its communicators back within "
                          "300 ms"));
  Run(1);
  EXPECT_EQ(Text(1), "the epoch is over");
  runner().Close(0);
  DestroyRunner();
  EXPECT_EQ(stuck().size(), 1u);
  EXPECT_GE(hooks().streams, 2);
  EXPECT_EQ(hooks().mapped, mapped);
}

TEST_F(AbortHangs, IsReportedByTheDestructor) {
  leaks_ = true;
  timeouts_.abort = milliseconds(60'000);
  NewRunner();
  OpenRanks(1);
  Connect(1);
  Run(0);
  EXPECT_TRUE(Ended(0).ok()) << Ended(0).message();
  const auto begin = Clock::now();
  DestroyRunner();
  EXPECT_LT(Clock::now() - begin, 3 * GpuRunner::kMostWait);
  EXPECT_EQ(stuck().size(), 1u);
}

// ncclCommAbort() waits for all streams, and one waits for the host.
class AbortWaits : public FailuresTest {};

TEST_F(AbortWaits, ForTheGpu) {
  OpenRanks(1);
  Connect(1);
  Run(0);
  EXPECT_TRUE(Ended(0).ok()) << Ended(0).message();
  hooks().Hold();
  const int launches = hooks().launches;
  runner().Run(SumOf({{0, 1}}, 10, 1));
  EXPECT_TRUE(Becomes([=] { return hooks().launches > launches; }));
  runner().Abort();
  EXPECT_EQ(Text(1), "the epoch is over");
  EXPECT_TRUE(Becomes([this] { return !stuck().empty(); }));
  hooks().Release();
}

}  // namespace
}  // namespace maypole
