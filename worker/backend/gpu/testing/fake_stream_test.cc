// Streams, flags and events of fake GPUs, stepped.
#include <algorithm>
#include <array>
#include <limits>

#include "worker/backend/gpu/testing/fake_testing.h"

namespace maypole::gpu {
namespace {

class FakeStreamTest : public testing::Test {
 protected:
  std::shared_ptr<FakeMachine> machine_ = Stepped();
  TestProcess a_{machine_}, b_{machine_};
  Gpu& gpu_ = *a_.gpu;
  const Stream stream_ = a_.stream;
};

TEST_F(FakeStreamTest, NothingRunsByItself) {
  const Address x = a_.Allocate();
  EXPECT_OK(gpu_.Fill(stream_, x, 1, 2));
  EXPECT_OK(gpu_.WriteValue(stream_, x + 8, 2));
  EXPECT_FALSE(gpu_.Done(stream_).value());
  EXPECT_FALSE(gpu_.Done(stream_).value());
  EXPECT_EQ(*At<uint64_t>(x), 0xa5a5a5a5a5a5a5a5u);
  while (*At<uint64_t>(x + 8) != 2) ASSERT_TRUE(machine_->Step());
  EXPECT_EQ(*At<uint64_t>(x), 0x100000001u);
  EXPECT_TRUE(gpu_.Done(stream_).value());
  EXPECT_FALSE(machine_->Step());
  EXPECT_EQ(machine_->Run(), 0);
  EXPECT_OK(gpu_.Copy(stream_, x, x, 0));  // no bytes, nothing to refuse
  EXPECT_OK(gpu_.Synchronize(stream_));
}

TEST(FakeStreamSeedsTest, WhatIsNotDoneMayBeSeenHalfDone) {
  int none = 0, half = 0, all = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const auto machine = Stepped(seed);
    TestProcess process(machine);
    const Address x = process.Allocate();
    EXPECT_OK(process.gpu->Fill(process.stream, x, 0, 1024));
    EXPECT_TRUE(machine->Step());
    const uint32_t* const words = At<uint32_t>(x);
    const auto done = std::count(words, words + 1024, 0u);
    EXPECT_EQ(process.gpu->Done(process.stream).value(), done == 1024);
    ++(done == 0 ? none : done < 1024 ? half : all);
    machine->Run();
    EXPECT_EQ(std::count(words, words + 1024, 0u), 1024);
  }
  EXPECT_EQ(none, 0);
  EXPECT_GT(half, 10);
  EXPECT_GT(all, 50);
}

TEST_F(FakeStreamTest, AFlagLetsAStreamGoOn) {
  const Address flag = a_.Allocate();
  const Address data = flag + 64;
  const Address flag_b = b_.ImportedFrom(a_, flag, 2 * kMiB);
  *At<uint64_t>(flag) = 0;
  EXPECT_OK(gpu_.WaitValue(stream_, flag, 3));
  EXPECT_OK(gpu_.Fill(stream_, data, 9, 1));
  machine_->Run();
  EXPECT_OK(b_.gpu->WriteValue(b_.stream, flag_b, 2));
  machine_->Run();
  EXPECT_EQ(*At<uint32_t>(data), 0xa5a5a5a5u);
  EXPECT_OK(b_.gpu->WriteValue(b_.stream, flag_b, 4));
  machine_->Run();
  EXPECT_EQ(*At<uint32_t>(data), 9u);
}

TEST_F(FakeStreamTest, FlagsAreComparedAsDifferences) {
  const Address flag = a_.Allocate();
  const uint64_t last = std::numeric_limits<uint64_t>::max();
  const auto goes_on = [&](uint64_t seen, uint64_t value, WaitFor what) {
    *At<uint64_t>(flag) = seen;
    EXPECT_OK(gpu_.WaitValue(stream_, flag, value, what));
    machine_->Run();
    const bool done = gpu_.Done(stream_).value();
    *At<uint64_t>(flag) = value;
    EXPECT_OK(gpu_.Synchronize(stream_));
    return done;
  };
  EXPECT_TRUE(goes_on(7, 7, WaitFor::kAtLeast));
  EXPECT_FALSE(goes_on(6, 7, WaitFor::kAtLeast));
  EXPECT_TRUE(goes_on(1, last, WaitFor::kAtLeast));
  EXPECT_FALSE(goes_on(last, 1, WaitFor::kAtLeast));
  EXPECT_TRUE(goes_on(7, 7, WaitFor::kEqual));
  EXPECT_FALSE(goes_on(8, 7, WaitFor::kEqual));
}

TEST_F(FakeStreamTest, AWaitWithoutEndSaysForWhat) {
  const Address flag = a_.Allocate();
  const Address flag_b = b_.ImportedFrom(a_, flag, 2 * kMiB);
  *At<uint64_t>(flag) = 1;
  *At<uint64_t>(flag + 8) = 2;
  EXPECT_OK(gpu_.WaitValue(stream_, flag, 7));
  EXPECT_REFUSED(gpu_.Synchronize(stream_), kFailedPrecondition,
                 ">= 7 (it is 1) and nothing enqueued writes it");
  EXPECT_REFUSED(gpu_.DestroyStream(stream_), kFailedPrecondition, ">= 7");
  // Crosswise: each writes what the other waits for, but too late.
  EXPECT_OK(gpu_.WriteValue(stream_, flag + 8, 8));
  EXPECT_OK(b_.gpu->WaitValue(b_.stream, flag_b + 8, 8, WaitFor::kEqual));
  EXPECT_OK(b_.gpu->WriteValue(b_.stream, flag_b, 7));
  EXPECT_REFUSED(gpu_.Synchronize(stream_), kFailedPrecondition,
                 "which is to write it, waits for flag");
  EXPECT_REFUSED(b_.gpu->Synchronize(b_.stream), kFailedPrecondition,
                 "== 8 (it is 2)");
  *At<uint64_t>(flag) = 7;  // the host helps
  EXPECT_OK(b_.gpu->Synchronize(b_.stream));
  EXPECT_OK(gpu_.DestroyStream(stream_));
}

TEST_F(FakeStreamTest, HandlesOfOthersAndGivenBackOnesAreRefused) {
  const Address x = a_.Allocate();
  EXPECT_REFUSED(gpu_.Fill(b_.stream, x, 1, 1), kInvalidArgument, "no stream");
  EXPECT_REFUSED(gpu_.Fill(Stream{}, x, 1, 1), kInvalidArgument, "no stream");
  EXPECT_REFUSED(gpu_.Done(b_.stream), kInvalidArgument, "no stream");
  const Event event = gpu_.CreateEvent(EventUse::kOrder).value();
  EXPECT_REFUSED(b_.gpu->EventDone(event), kInvalidArgument, "no event");
  EXPECT_REFUSED(b_.gpu->WaitEvent(b_.stream, event), kInvalidArgument,
                 "no event");
  EXPECT_OK(gpu_.DestroyEvent(event));
  EXPECT_REFUSED(gpu_.DestroyEvent(event), kInvalidArgument, "no event");
  EXPECT_REFUSED(gpu_.Record(event, stream_), kInvalidArgument, "no event");
  EXPECT_OK(gpu_.DestroyStream(stream_));
  EXPECT_REFUSED(gpu_.DestroyStream(stream_), kInvalidArgument, "no stream");
  const auto second = a_.driver->Open(FakeMachine::Uuid(0)).value();
  const Stream stream = second->CreateStream().value();
  EXPECT_REFUSED(gpu_.Synchronize(stream), kInvalidArgument, "no stream");
  EXPECT_REFUSED(second->Fill(stream, x, 1, 1), kInvalidArgument, "neither");
}

TEST_F(FakeStreamTest, MisalignedAddressesAreRefused) {
  const Address x = a_.Allocate();
  EXPECT_REFUSED(gpu_.WriteValue(stream_, x + 4, 1), kInvalidArgument,
                 "aligned to 8");
  EXPECT_REFUSED(gpu_.WaitValue(stream_, x + 1, 1), kInvalidArgument,
                 "aligned to 8");
  EXPECT_REFUSED(gpu_.Fill(stream_, x + 2, 1, 1), kInvalidArgument,
                 "aligned to 4");
  EXPECT_REFUSED(gpu_.Reduce(stream_, {.inputs = std::array{x + 8},
                                       .outputs = std::array{x + 64},
                                       .elements = 1}),
                 kInvalidArgument, "aligned to 16");
  EXPECT_OK(gpu_.Copy(stream_, x + 1, x + 129, 100));
}

TEST_F(FakeStreamTest, ReduceKeepsItsContract) {
  const Address x = a_.Allocate();
  std::vector<Address> many(kMaxReduced + 1, x);
  const std::array one = {x}, other = {x + 4096};
  const auto reduce = [&](std::span<const Address> in,
                          std::span<const Address> out, DType dtype, Op op) {
    return gpu_.Reduce(stream_, {.inputs = in,
                                 .outputs = out,
                                 .elements = 4,
                                 .dtype = dtype,
                                 .op = op});
  };
  const DType f32 = DType::kFloat32;
  EXPECT_REFUSED(reduce({}, other, f32, Op::kSum), kInvalidArgument, "0 inp");
  EXPECT_REFUSED(reduce(one, {}, f32, Op::kSum), kInvalidArgument, "0 outp");
  EXPECT_REFUSED(reduce(many, other, f32, Op::kSum), kInvalidArgument, "17 in");
  EXPECT_REFUSED(reduce(one, many, f32, Op::kSum), kInvalidArgument, "17 out");
  EXPECT_REFUSED(reduce(one, other, DType::kInt32, Op::kSum), kInvalidArgument,
                 "int32");
  EXPECT_REFUSED(reduce(one, other, f32, Op::kProduct), kInvalidArgument,
                 "product");
  EXPECT_REFUSED(reduce(one, other, f32, Op::kAverage), kInvalidArgument,
                 "average");
  EXPECT_REFUSED(gpu_.Reduce(stream_, {.inputs = one,
                                       .outputs = other,
                                       .elements = 4,
                                       .dtype = static_cast<DType>(99)}),
                 kInvalidArgument, "cannot reduce");
  EXPECT_TRUE(gpu_.Done(stream_).value());

  float* const f = At<float>(x);
  for (int i = 0; i < 4; ++i) {
    f[i] = static_cast<float>(i);          // 0 1 2 3
    f[4 + i] = static_cast<float>(2 - i);  // 2 1 0 -1
  }
  const std::array in = {x, x + 16};
  const std::array out = {x + 16, x + 4096};
  EXPECT_OK(gpu_.Reduce(stream_, {.inputs = in,
                                  .outputs = out,
                                  .elements = 4,
                                  .op = Op::kMax,
                                  .scale = 0.5}));
  EXPECT_OK(gpu_.Synchronize(stream_));
  for (const float* got : {f + 4, At<float>(x + 4096)}) {
    EXPECT_EQ(std::vector<float>(got, got + 4),
              (std::vector<float>{1, 0.5, 1, 1.5}));
  }
}

TEST_F(FakeStreamTest, SpinsAndKernelsWantBlocks) {
  const Address x = a_.Allocate();
  EXPECT_REFUSED(gpu_.Spin(stream_, 0, 1), kInvalidArgument, "0 blocks");
  EXPECT_REFUSED(gpu_.Spin(stream_, 1, -1), kInvalidArgument, "-1 ns");
  EXPECT_REFUSED(gpu_.KernelCopy(stream_, x, x + 64, 64, -1), kInvalidArgument,
                 "-1 blocks");
  EXPECT_OK(gpu_.KernelCopy(stream_, x, x + 64, 64, 0));
}

// --- Events ------------------------------------------------------------------

TEST_F(FakeStreamTest, EventsTellTheTimeBetween) {
  const Event begin = gpu_.CreateEvent(EventUse::kTiming).value();
  const Event end = gpu_.CreateEvent(EventUse::kTiming).value();
  const Event order = gpu_.CreateEvent(EventUse::kOrder).value();
  EXPECT_TRUE(gpu_.EventDone(begin).value());  // never recorded
  EXPECT_REFUSED(gpu_.Milliseconds(begin, end), kInvalidArgument,
                 "never recorded");
  EXPECT_OK(gpu_.Record(begin, stream_));
  EXPECT_OK(gpu_.Spin(stream_, 1, 20'000'000));
  EXPECT_OK(gpu_.Record(end, stream_));
  EXPECT_OK(gpu_.Record(order, stream_));
  EXPECT_FALSE(gpu_.EventDone(end).value());
  EXPECT_REFUSED(gpu_.Milliseconds(begin, end), kFailedPrecondition,
                 "NOT_READY");
  EXPECT_OK(gpu_.Synchronize(stream_));
  EXPECT_TRUE(gpu_.EventDone(end).value());
  // 20 ms after the step in which it began, and one step of 1 us.
  EXPECT_NEAR(gpu_.Milliseconds(begin, end).value(), 20.002, 1e-9);
  EXPECT_REFUSED(gpu_.Milliseconds(begin, order), kInvalidArgument,
                 "not made with kTiming");
}

TEST_F(FakeStreamTest, AStreamWaitsForTheRecordThatWasIssuedBefore) {
  const Address x = a_.Allocate();
  const Stream second = gpu_.CreateStream().value();
  const Event event = gpu_.CreateEvent(EventUse::kOrder).value();
  EXPECT_OK(gpu_.WaitEvent(second, event));  // none yet: for none
  EXPECT_OK(gpu_.Synchronize(second));
  *At<uint64_t>(x) = 0;
  EXPECT_OK(gpu_.WaitValue(stream_, x, 1));
  EXPECT_OK(gpu_.Record(event, stream_));
  EXPECT_OK(gpu_.WaitEvent(second, event));
  EXPECT_OK(gpu_.Fill(second, x + 64, 1, 1));
  // A later record, on an idle stream, is not what is waited for.
  const Stream third = gpu_.CreateStream().value();
  EXPECT_OK(gpu_.Record(event, third));
  machine_->Run();
  EXPECT_TRUE(gpu_.EventDone(event).value());
  EXPECT_REFUSED(gpu_.Synchronize(second), kFailedPrecondition,
                 "record 1 of an event");
  *At<uint64_t>(x) = 1;
  EXPECT_OK(gpu_.Synchronize(second));
  EXPECT_EQ(*At<uint32_t>(x + 64), 1u);
}

TEST_F(FakeStreamTest, InterprocessEventsOrderStreamsOfProcesses) {
  const Event event = gpu_.CreateEvent(EventUse::kInterprocess).value();
  const EventHandle handle = gpu_.ExportEvent(event).value();
  const Event there = b_.gpu->ImportEvent(handle).value();
  const Address x = a_.Allocate();
  const Address x_b = b_.ImportedFrom(a_, x, 2 * kMiB);
  EXPECT_OK(gpu_.Fill(stream_, x, 5, 1));
  EXPECT_OK(gpu_.Record(event, stream_));
  EXPECT_OK(b_.gpu->WaitEvent(b_.stream, there));
  EXPECT_OK(b_.gpu->Copy(b_.stream, x_b + 64, x_b, 4));
  EXPECT_FALSE(b_.gpu->EventDone(there).value());
  EXPECT_OK(b_.gpu->Synchronize(b_.stream));
  EXPECT_EQ(*At<uint32_t>(x + 64), 5u);
  // Back, by the same event.
  EXPECT_OK(b_.gpu->Record(there, b_.stream));
  EXPECT_FALSE(gpu_.EventDone(event).value());
  machine_->Run();
  EXPECT_TRUE(gpu_.EventDone(event).value());

  EXPECT_OK(gpu_.DestroyEvent(event));
  EXPECT_REFUSED(b_.gpu->Record(there, b_.stream), kFailedPrecondition,
                 "has destroyed it");
  EXPECT_REFUSED(b_.gpu->ImportEvent(handle), kInvalidArgument, "destroyed");
}

TEST_F(FakeStreamTest, EventsOfTheKilledAreNoMoreToBeHad) {
  const Event event = gpu_.CreateEvent(EventUse::kInterprocess).value();
  const EventHandle handle = gpu_.ExportEvent(event).value();
  const Event there = b_.gpu->ImportEvent(handle).value();
  EXPECT_OK(gpu_.Record(event, stream_));
  EXPECT_OK(b_.gpu->WaitEvent(b_.stream, there));
  a_.driver->Kill();
  EXPECT_REFUSED(b_.gpu->ImportEvent(handle), kInvalidArgument, "gone");
  EXPECT_FALSE(b_.gpu->EventDone(there).value());  // nor will it ever be
  EXPECT_REFUSED(b_.gpu->Synchronize(b_.stream), kFailedPrecondition,
                 "record 1 of an event and nothing enqueued can run");
}

TEST_F(FakeStreamTest, InterprocessEventsAreNotMisused) {
  const Event order = gpu_.CreateEvent(EventUse::kOrder).value();
  const Event event = gpu_.CreateEvent(EventUse::kInterprocess).value();
  EXPECT_REFUSED(gpu_.ExportEvent(order), kInvalidArgument, "kInterprocess");
  const EventHandle handle = gpu_.ExportEvent(event).value();
  EXPECT_REFUSED(gpu_.ImportEvent(handle), kFailedPrecondition, "own");
  EXPECT_REFUSED(gpu_.ImportEvent(EventHandle{}), kInvalidArgument,
                 "not a handle");
  const Event there = b_.gpu->ImportEvent(handle).value();
  EXPECT_REFUSED(b_.gpu->ExportEvent(there), kInvalidArgument, "imported");
  EXPECT_OK(gpu_.Record(event, stream_));
  machine_->Run();
  EXPECT_REFUSED(gpu_.Milliseconds(event, event), kInvalidArgument, "kTiming");
  EXPECT_REFUSED(gpu_.CreateEvent(static_cast<EventUse>(9)), kInvalidArgument,
                 "no such use");
}

// --- Injection ---------------------------------------------------------------

TEST_F(FakeStreamTest, TheNextCallFailsAsItIsTold) {
  const Address x = a_.Allocate();
  EXPECT_REFUSED(a_.driver->FailNext("Coppy", absl::InternalError("?")),
                 kInvalidArgument, "Coppy");
  EXPECT_OK(a_.driver->FailNext("Fill", absl::UnavailableError("first")));
  EXPECT_OK(a_.driver->FailNext("Fill", absl::AbortedError("second")));
  EXPECT_OK(a_.driver->FailNext("Open", absl::UnavailableError("no device")));
  EXPECT_OK(gpu_.Copy(stream_, x, x + 64, 64));
  EXPECT_REFUSED(gpu_.Fill(stream_, x, 1, 1), kUnavailable,
                 "Fill on GPU-fa4e0000");
  EXPECT_REFUSED(gpu_.Fill(stream_, x, 1, 1), kAborted, "second");
  EXPECT_OK(gpu_.Fill(stream_, x, 1, 1));
  EXPECT_REFUSED(a_.driver->Open(FakeMachine::Uuid(0)), kUnavailable,
                 "no device");
  EXPECT_OK(a_.driver->Open(FakeMachine::Uuid(0)));
}

TEST_F(FakeStreamTest, ADelayedOperationLetsOthersPass) {
  const Address x = a_.Allocate();
  *At<uint64_t>(x) = 0;
  const Stream second = gpu_.CreateStream().value();
  EXPECT_REFUSED(a_.driver->DelayNext("WriteValue", std::chrono::seconds(1)),
                 kInvalidArgument, "by steps");
  EXPECT_REFUSED(a_.driver->DelayNext("Nothing", 1), kInvalidArgument,
                 "Nothing");
  EXPECT_OK(a_.driver->DelayNext("WriteValue", 10));
  EXPECT_OK(gpu_.WriteValue(stream_, x, 1));
  EXPECT_OK(gpu_.WriteValue(second, x + 8, 1));
  EXPECT_TRUE(machine_->Step());
  EXPECT_TRUE(gpu_.Done(second).value());
  for (int i = 1; i < 10; ++i) {
    EXPECT_TRUE(machine_->Step());
    EXPECT_EQ(*At<uint64_t>(x), 0u) << i;
  }
  EXPECT_TRUE(machine_->Step());
  EXPECT_EQ(*At<uint64_t>(x), 1u);
  EXPECT_OK(gpu_.WriteValue(stream_, x, 2));  // not this one
  EXPECT_TRUE(machine_->Step());
  EXPECT_EQ(*At<uint64_t>(x), 2u);
}

TEST_F(FakeStreamTest, AKilledProcessStopsInTheMiddleOfItsQueue) {
  const Address of_a = a_.Allocate();
  const Address x = b_.ImportedFrom(a_, of_a, 2 * kMiB);
  uint64_t* const words = At<uint64_t>(x);
  for (int i = 0; i < 8; ++i) words[i] = 0;
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_OK(gpu_.WriteValue(stream_, of_a + 8 * i, 1));
  }
  EXPECT_OK(b_.gpu->WaitValue(b_.stream, x + 56, 1));
  while (words[4] == 0) ASSERT_TRUE(machine_->Step());
  a_.driver->Kill();
  EXPECT_EQ(machine_->Run(), 0);
  EXPECT_EQ(words[4], 1u);
  EXPECT_EQ(words[5], 0u);
  EXPECT_REFUSED(gpu_.WriteValue(stream_, of_a, 1), kInternal, "killed");
  EXPECT_REFUSED(gpu_.Synchronize(stream_), kInternal, "killed");
  EXPECT_REFUSED(a_.driver->Open(FakeMachine::Uuid(0)), kInternal, "killed");
  EXPECT_REFUSED(b_.gpu->Synchronize(b_.stream), kFailedPrecondition,
                 "nothing enqueued writes it");
  words[7] = 1;  // b's watchdog
  EXPECT_OK(b_.gpu->Synchronize(b_.stream));
  a_.driver->Kill();
}

TEST_F(FakeStreamTest, ALostContextFailsAllButHoldsItsMemory) {
  const Address x = a_.Allocate();
  *At<uint64_t>(x) = 0;
  EXPECT_OK(gpu_.WriteValue(stream_, x, 1));
  a_.driver->LoseContext();
  EXPECT_EQ(machine_->Run(), 0);
  EXPECT_EQ(*At<uint64_t>(x), 0u);
  EXPECT_REFUSED(gpu_.Done(stream_), kInternal, "the context is lost");
  EXPECT_REFUSED(gpu_.Free(x), kInternal, "the context is lost");
  EXPECT_REFUSED(gpu_.CreateEvent(EventUse::kOrder), kInternal, "lost");
  EXPECT_EQ(b_.Taken(), 2 * kMiB);
  a_.driver->Kill();
  EXPECT_EQ(b_.Taken(), 0u);
}

}  // namespace
}  // namespace maypole::gpu
