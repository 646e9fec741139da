// Memory of fake GPUs: which process may use it, and how much of it is taken.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <functional>

#include "worker/backend/gpu/testing/fake_testing.h"

namespace maypole::gpu {
namespace {

class FakeMemoryTest : public testing::Test {
 protected:
  std::shared_ptr<FakeMachine> machine_ = Stepped();
  TestProcess a_{machine_}, b_{machine_};
};

TEST_F(FakeMemoryTest, AllocationsAreRoundedUpAndHoldGarbage) {
  const Memory memory = a_.gpu->Allocate(1).value();
  EXPECT_EQ(memory.bytes, 2 * kMiB);
  EXPECT_EQ(*At<uint32_t>(memory.address), 0xa5a5a5a5u);
  EXPECT_EQ(a_.gpu->Allocate(2 * kMiB + 1)->bytes, 4 * kMiB);
  EXPECT_EQ(a_.Taken(), 6 * kMiB);
  EXPECT_EQ(b_.Taken(), 6 * kMiB);
  EXPECT_EQ(a_.gpu->MemoryRoom()->total_bytes, uint64_t{16} << 30);
  EXPECT_OK(a_.gpu->Free(memory.address));
  EXPECT_EQ(b_.Taken(), 4 * kMiB);
  EXPECT_REFUSED(a_.gpu->Allocate(0), kInvalidArgument, "0 bytes");
}

TEST_F(FakeMemoryTest, OnlyWhatBeginsAnAllocationIsFreedAndOnce) {
  const Address address = a_.Allocate();
  EXPECT_REFUSED(a_.gpu->Free(address + 4096), kInvalidArgument, "begins no");
  EXPECT_REFUSED(a_.gpu->Free(4096), kInvalidArgument, "begins no");
  EXPECT_REFUSED(b_.gpu->Free(address), kInvalidArgument, "begins no");
  HostPages page;
  const Address host = a_.gpu->RegisterHost(page.data(), page.bytes()).value();
  EXPECT_REFUSED(a_.gpu->Free(host), kInvalidArgument, "begins no");
  EXPECT_EQ(a_.Taken(), 2 * kMiB);
  EXPECT_OK(a_.gpu->Free(address));
  EXPECT_REFUSED(a_.gpu->Free(address), kFailedPrecondition, "freed before");
  EXPECT_EQ(a_.Taken(), 0u);
  // Nobody gets the address again.
  for (int i = 0; i < 8; ++i) EXPECT_NE(a_.Allocate(), address);
  EXPECT_REFUSED(a_.gpu->Free(address), kFailedPrecondition, "freed before");
}

// All calls that take an address, each with one valid address besides.
using Use = std::function<absl::Status(TestProcess&, Address, Address good)>;
const std::vector<std::pair<const char*, Use>>& Uses() {
  static const std::vector<std::pair<const char*, Use>> uses = {
      {"WriteValue",
       [](TestProcess& p, Address address, Address) {
         return p.gpu->WriteValue(p.stream, address, 1);
       }},
      {"WaitValue",
       [](TestProcess& p, Address address, Address) {
         return p.gpu->WaitValue(p.stream, address, 1);
       }},
      {"Copy",
       [](TestProcess& p, Address address, Address good) {
         return p.gpu->Copy(p.stream, address, good, 64);
       }},
      {"Copy",
       [](TestProcess& p, Address address, Address good) {
         return p.gpu->Copy(p.stream, good, address, 64);
       }},
      {"Fill", [](TestProcess& p, Address address,
                  Address) { return p.gpu->Fill(p.stream, address, 7, 16); }},
      {"KernelCopy",
       [](TestProcess& p, Address address, Address good) {
         return p.gpu->KernelCopy(p.stream, address, good, 64, 0);
       }},
      {"KernelCopy",
       [](TestProcess& p, Address address, Address good) {
         return p.gpu->KernelCopy(p.stream, good, address, 64, 8);
       }},
      {"Reduce",
       [](TestProcess& p, Address address, Address good) {
         return p.gpu->Reduce(p.stream, {.inputs = std::array{address},
                                         .outputs = std::array{good},
                                         .elements = 16});
       }},
      {"Reduce",
       [](TestProcess& p, Address address, Address good) {
         return p.gpu->Reduce(p.stream, {.inputs = std::array{good},
                                         .outputs = std::array{address},
                                         .elements = 16});
       }},
  };
  return uses;
}

TEST_F(FakeMemoryTest, NothingUsesWhatIsNotItsOwn) {
  const Address good = a_.Allocate();
  const Address freed = a_.Allocate();
  ASSERT_TRUE(a_.gpu->Free(freed).ok());
  const Address of_b = b_.Allocate();
  HostPages page;
  const Address host = reinterpret_cast<Address>(page.data());
  for (const auto& [call, use] : Uses()) {
    SCOPED_TRACE(call);
    EXPECT_REFUSED(use(a_, freed + 64, good), kFailedPrecondition, "freed");
    EXPECT_REFUSED(use(a_, host, good), kInvalidArgument, "neither device");
    EXPECT_REFUSED(use(a_, of_b, good), kInvalidArgument, "neither device");
    EXPECT_REFUSED(use(a_, 0, good), kInvalidArgument, call);
    EXPECT_TRUE(a_.gpu->Done(a_.stream).value());  // nothing was enqueued
  }
  ASSERT_TRUE(a_.gpu->RegisterHost(page.data(), page.bytes()).ok());
  *At<uint64_t>(host) = 1;
  for (const auto& [call, use] : Uses()) {
    SCOPED_TRACE(call);
    EXPECT_OK(use(a_, host, good));
  }
  EXPECT_REFUSED(a_.gpu->UnregisterHost(page.data()), kFailedPrecondition,
                 "has not done all");
  machine_->Run();
  EXPECT_OK(a_.gpu->UnregisterHost(page.data()));
  EXPECT_REFUSED(a_.gpu->UnregisterHost(page.data()), kInvalidArgument,
                 "not registered");
  EXPECT_REFUSED(a_.gpu->WriteValue(a_.stream, host, 1), kInvalidArgument,
                 "neither device");
}

TEST_F(FakeMemoryTest, NothingReachesBeyondItsAllocation) {
  const Address x = a_.Allocate(), y = a_.Allocate();
  const uint64_t all = 2 * kMiB;
  Gpu& gpu = *a_.gpu;
  const Stream stream = a_.stream;
  EXPECT_REFUSED(gpu.Copy(stream, x, y, all + 1), kInvalidArgument, "outside");
  EXPECT_REFUSED(gpu.Copy(stream, x + 1, y, all), kInvalidArgument, "target");
  EXPECT_REFUSED(gpu.Copy(stream, x, y + 1, all), kInvalidArgument, "source");
  EXPECT_REFUSED(gpu.Copy(stream, x, y, ~uint64_t{0}), kInvalidArgument,
                 "outside");
  EXPECT_REFUSED(gpu.Fill(stream, x, 0, all / 4 + 1), kInvalidArgument,
                 "outside");
  EXPECT_REFUSED(gpu.Fill(stream, x, 0, uint64_t{1} << 62), kInvalidArgument,
                 "cannot fill");
  EXPECT_REFUSED(gpu.WriteValue(stream, x + all, 0), kInvalidArgument, "flag");
  EXPECT_REFUSED(gpu.Reduce(stream, {.inputs = std::array{x},
                                     .outputs = std::array{y},
                                     .elements = all / 4 + 1}),
                 kInvalidArgument, "outside");
  EXPECT_REFUSED(gpu.Reduce(stream, {.inputs = std::array{x},
                                     .outputs = std::array{y},
                                     .elements = ~uint64_t{0}}),
                 kInvalidArgument, "cannot reduce");
  EXPECT_OK(gpu.Copy(stream, x, y, all));
  EXPECT_OK(gpu.Fill(stream, x, 0, all / 4));
  EXPECT_OK(gpu.WriteValue(stream, x + all - 8, 0));
}

TEST_F(FakeMemoryTest, OperandsMustNotOverlapThroughWhateverMapping) {
  const Address x = a_.Allocate();
  const Address again = a_.ImportedFrom(a_, x, 2 * kMiB);
  EXPECT_NE(x, again);
  Gpu& gpu = *a_.gpu;
  const Stream s = a_.stream;
  EXPECT_REFUSED(gpu.Copy(s, x, x + 63, 64), kInvalidArgument, "overlap");
  EXPECT_REFUSED(gpu.Copy(s, x, again + 63, 64), kInvalidArgument, "overlap");
  EXPECT_REFUSED(gpu.KernelCopy(s, x, x, 64, 0), kInvalidArgument, "overlap");
  EXPECT_OK(gpu.Copy(s, x, again + 64, 64));
  const auto reduce = [&](std::vector<Address> in, std::vector<Address> out) {
    return gpu.Reduce(s, {.inputs = in, .outputs = out, .elements = 16});
  };
  EXPECT_OK(reduce({x, x + 64}, {x, x + 64}));
  EXPECT_REFUSED(reduce({x, x + 64}, {x + 16}), kInvalidArgument, "overlaps");
  EXPECT_REFUSED(reduce({x}, {again}), kInvalidArgument, "overlaps");
  EXPECT_REFUSED(reduce({x}, {x + 64, x + 64}), kInvalidArgument,
                 "outputs 0 and 1");
}

TEST_F(FakeMemoryTest, WhatIsImportedIsTheSameMemory) {
  const Address of_a = a_.Allocate();
  *At<uint64_t>(of_a + 4096) = 5;
  const Address of_b = b_.ImportedFrom(a_, of_a, 2 * kMiB);
  EXPECT_EQ(*At<uint64_t>(of_b + 4096), 5u);
  EXPECT_OK(b_.gpu->WriteValue(b_.stream, of_b + 4096, 6));
  EXPECT_EQ(*At<uint64_t>(of_a + 4096), 5u);
  machine_->Run();
  EXPECT_EQ(*At<uint64_t>(of_a + 4096), 6u);
  EXPECT_REFUSED(b_.gpu->Export(of_b), kFailedPrecondition, "imported");
  EXPECT_REFUSED(a_.gpu->Export(of_a + 4096), kInvalidArgument, "begins no");
  EXPECT_OK(a_.gpu->Free(of_a));
  EXPECT_REFUSED(a_.gpu->Export(of_a), kFailedPrecondition, "freed");
  EXPECT_EQ(*At<uint64_t>(of_b + 4096), 6u);
}

TEST_F(FakeMemoryTest, OnlyExportedMemoryOfThisMachineIsImported) {
  const Address address = a_.Allocate();
  const Fd fd = a_.gpu->Export(address).value();
  EXPECT_REFUSED(b_.gpu->Import(fd.get(), 4 * kMiB), kInvalidArgument,
                 "no exported memory");
  EXPECT_REFUSED(b_.gpu->Import(fd.get(), 2 * kMiB - 1), kInvalidArgument,
                 "not the size");
  EXPECT_REFUSED(b_.gpu->Import(fd.get(), 0), kInvalidArgument, "not the size");
  EXPECT_REFUSED(b_.gpu->Import(-1, 2 * kMiB), kInvalidArgument,
                 "no exported memory");
  const Fd other(memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(other.get(), 2 * kMiB + 4096), 0);
  EXPECT_REFUSED(b_.gpu->Import(other.get(), 2 * kMiB), kInvalidArgument,
                 "no exported memory");
  TestProcess stranger(Stepped());
  EXPECT_REFUSED(stranger.gpu->Import(fd.get(), 2 * kMiB), kInvalidArgument,
                 "no exported memory");
  EXPECT_EQ(b_.Taken(), 2 * kMiB);
}

TEST(FakeDevicesTest, EachHasItsOwnMemory) {
  const auto machine =
      FakeMachine::Create(
          {.mode = FakeMachine::Mode::kStepped,
           .devices = {FakeMachine::Device(0), FakeMachine::Device(1)}})
          .value();
  TestProcess a(machine, 0), b(machine, 1);
  EXPECT_EQ(a.driver->Devices()->size(), 2u);
  EXPECT_EQ(b.gpu->device().uuid, FakeMachine::Uuid(1));
  const Fd fd = a.gpu->Export(a.Allocate()).value();
  EXPECT_EQ(a.Taken(), 2 * kMiB);
  EXPECT_EQ(b.Taken(), 0u);
  EXPECT_REFUSED(b.gpu->Import(fd.get(), 2 * kMiB), kInvalidArgument,
                 "memory of device 0");
  EXPECT_REFUSED(a.driver->Open("GPU-none"), kUnavailable, "GPU-none");
}

TEST(FakeRoomTest, IsTakenWhileAnybodyMapsIt) {
  DeviceInfo small = FakeMachine::Device(0);
  small.total_bytes = 8 * kMiB;
  const auto machine = FakeMachine::Create({.mode = FakeMachine::Mode::kStepped,
                                            .devices = {small}})
                           .value();
  TestProcess watcher(machine);
  auto a = std::make_unique<TestProcess>(machine);
  TestProcess b(machine);
  const Address of_a = a->Allocate(4 * kMiB);
  EXPECT_REFUSED(b.gpu->Allocate(6 * kMiB), kResourceExhausted, "4194304 of");
  const Address of_b = b.ImportedFrom(*a, of_a, 4 * kMiB);
  const Address again = b.ImportedFrom(*a, of_a, 4 * kMiB);
  EXPECT_EQ(watcher.Taken(), 4 * kMiB);  // once, whoever maps it
  EXPECT_OK(b.gpu->Free(again));
  const Address more = a->Allocate(2 * kMiB);
  EXPECT_EQ(watcher.Taken(), 6 * kMiB);
  a->driver->Kill();
  EXPECT_EQ(watcher.Taken(), 4 * kMiB);  // `more` came back, b's is b's
  EXPECT_REFUSED(a->gpu->Free(more), kInternal, "killed");
  EXPECT_EQ(*At<uint32_t>(of_b), 0xa5a5a5a5u);
  EXPECT_OK(b.gpu->Free(of_b));
  EXPECT_EQ(watcher.Taken(), 0u);
  b.Allocate(8 * kMiB);
  EXPECT_REFUSED(watcher.gpu->Allocate(1), kResourceExhausted, "OUT_OF_MEMORY");
}

TEST(FakeRoomTest, ComesBackWhenAProcessEnds) {
  const auto machine = Stepped();
  TestProcess watcher(machine);
  {
    TestProcess a(machine);
    a.Allocate(6 * kMiB);
    EXPECT_EQ(watcher.Taken(), 6 * kMiB);
  }
  EXPECT_EQ(watcher.Taken(), 0u);
}

TEST_F(FakeMemoryTest, HostMemoryIsRegisteredOnceAndIfItIsThere) {
  HostPages pages(8192);
  auto* const bytes = static_cast<std::byte*>(pages.data());
  EXPECT_REFUSED(a_.gpu->RegisterHost(bytes + 8, 4096), kInvalidArgument,
                 "whole pages");
  EXPECT_REFUSED(a_.gpu->RegisterHost(nullptr, 4096), kInvalidArgument,
                 "whole pages");
  EXPECT_REFUSED(a_.gpu->RegisterHost(bytes, 0), kInvalidArgument,
                 "whole pages");
  EXPECT_EQ(a_.gpu->RegisterHost(bytes + 4096, 4096).value(),
            reinterpret_cast<Address>(bytes + 4096));
  EXPECT_REFUSED(a_.gpu->RegisterHost(bytes, 8192), kFailedPrecondition,
                 "ALREADY_REGISTERED");
  EXPECT_OK(a_.gpu->RegisterHost(bytes, 4096));
  EXPECT_OK(b_.gpu->RegisterHost(bytes, 8192));  // in another process
  void* const device = At<void>(a_.Allocate());
  EXPECT_REFUSED(a_.gpu->RegisterHost(device, 4096), kFailedPrecondition,
                 "device memory");
  void* const gone =
      mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(gone, 4096);
  EXPECT_REFUSED(b_.gpu->RegisterHost(gone, 4096), kInvalidArgument,
                 "not mapped");
}

TEST_F(FakeMemoryTest, FreeDoesAllTheWorkFirst) {
  const Address x = a_.Allocate(), y = a_.Allocate();
  EXPECT_OK(a_.gpu->Fill(a_.stream, x, 3, 16));
  EXPECT_OK(a_.gpu->Copy(a_.stream, y, x, 64));
  EXPECT_OK(a_.gpu->Free(x));
  EXPECT_EQ(*At<uint32_t>(y + 60), 3u);
  EXPECT_OK(a_.gpu->WaitValue(a_.stream, y + 64, 1, WaitFor::kEqual));
  EXPECT_REFUSED(a_.gpu->Free(y), kFailedPrecondition, "nothing enqueued");
  *At<uint64_t>(y + 64) = 1;
  EXPECT_OK(a_.gpu->Free(y));
}

}  // namespace
}  // namespace maypole::gpu
