#include "worker/backend/gpu/owned.h"

#include "worker/backend/gpu/testing/fake_testing.h"

namespace maypole::gpu {
namespace {

class OwnedTest : public testing::Test {
 protected:
  std::shared_ptr<FakeMachine> machine_ = Stepped();
  TestProcess process_{machine_};
  Gpu& gpu_ = *process_.gpu;
};

TEST_F(OwnedTest, AStreamIsDestroyedOnce) {
  Stream stream;
  {
    OwnedStream first = OwnedStream::Create(gpu_).value();
    stream = first.get();
    EXPECT_TRUE(first.valid());
    OwnedStream second = std::move(first);
    EXPECT_FALSE(first.valid());
    EXPECT_EQ(second.get().id, stream.id);
    EXPECT_OK(gpu_.Done(stream));
    second = OwnedStream();
    EXPECT_REFUSED(gpu_.Done(stream), kInvalidArgument, "no stream");
    second = OwnedStream::Create(gpu_).value();
    stream = second.get();
    EXPECT_OK(gpu_.Done(stream));
  }
  EXPECT_REFUSED(gpu_.Done(stream), kInvalidArgument, "no stream");
  ASSERT_TRUE(
      process_.driver->FailNext("CreateStream", absl::InternalError("no more"))
          .ok());
  EXPECT_REFUSED(OwnedStream::Create(gpu_), kInternal, "no more");
}

TEST_F(OwnedTest, EventsAndCommunicatorsAreGivenBack) {
  const OwnedEvent event = OwnedEvent::Create(gpu_, EventUse::kTiming).value();
  EXPECT_OK(gpu_.Record(event.get(), process_.stream));
  Event gone;
  {
    OwnedEvent other = OwnedEvent::Create(gpu_, EventUse::kOrder).value();
    gone = other.get();
  }
  EXPECT_REFUSED(gpu_.EventDone(gone), kInvalidArgument, "no event");
  const NcclId id = gpu_.MakeNcclId().value();
  const Communicator handle = gpu_.JoinCommunicator(id, 1, 0).value();
  OwnedCommunicator communicator(gpu_, handle);
  EXPECT_EQ(gpu_.PollCommunicator(handle).value(), CommunicatorState::kReady);
  communicator.Reset();
  EXPECT_REFUSED(gpu_.PollCommunicator(handle), kInvalidArgument,
                 "no communicator");
}

TEST_F(OwnedTest, MemoryIsFreedByTheLastOwner) {
  TestProcess other(machine_);
  Address address = 0;
  {
    OwnedMemory memory = OwnedMemory::Allocate(gpu_, 4096).value();
    address = memory.address();
    EXPECT_EQ(memory.bytes(), 2 * kMiB);
    const Fd fd = gpu_.Export(address).value();
    OwnedMemory imported =
        OwnedMemory::Import(*other.gpu, fd.get(), memory.bytes()).value();
    OwnedMemory moved = std::move(memory);
    EXPECT_EQ(memory.address(), 0u);
    EXPECT_EQ(moved.address(), address);
    moved.Reset();
    EXPECT_EQ(other.Taken(), 2 * kMiB);  // imported is left
    moved = OwnedMemory::Allocate(gpu_, 4096).value();
    EXPECT_EQ(other.Taken(), 4 * kMiB);
  }
  EXPECT_EQ(other.Taken(), 0u);
  EXPECT_REFUSED(gpu_.Free(address), kFailedPrecondition, "freed before");
}

TEST_F(OwnedTest, ARegistrationEndsWithItsOwner) {
  HostPages page;
  {
    HostRegistration first =
        HostRegistration::Create(gpu_, page.data(), page.bytes()).value();
    HostRegistration second = std::move(first);
    EXPECT_EQ(first.address(), 0u);
    EXPECT_OK(gpu_.WriteValue(process_.stream, second.address(), 1));
    machine_->Run();
    EXPECT_REFUSED(HostRegistration::Create(gpu_, page.data(), page.bytes()),
                   kFailedPrecondition, "registered already");
  }
  EXPECT_OK(HostRegistration::Create(gpu_, page.data(), page.bytes()));
  EXPECT_REFUSED(gpu_.UnregisterHost(page.data()), kInvalidArgument,
                 "not registered");
}

}  // namespace
}  // namespace maypole::gpu
