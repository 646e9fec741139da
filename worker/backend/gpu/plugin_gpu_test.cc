// The plugin on a real GPU. Skips where there is none; what needs several
// processes is the probe's (tests/gpu/probe).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/reduce/reduce.h"
#include "common/system/fd.h"
#include "worker/backend/gpu/loaded_gpu.h"
#include "worker/backend/gpu/owned.h"

namespace maypole::gpu {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

// Host memory that the device reads and writes.
class HostPages {
 public:
  HostPages(Gpu& gpu, uint64_t bytes)
      : mapping_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0),
                 bytes) {
    auto registration = HostRegistration::Create(gpu, mapping_.data(), bytes);
    EXPECT_TRUE(registration.ok()) << registration.status();
    if (registration.ok()) registration_ = *std::move(registration);
  }
  std::byte* data() const { return mapping_.data(); }
  Address address() const { return registration_.address(); }
  uint64_t word(size_t i) const {
    return __atomic_load_n(reinterpret_cast<uint64_t*>(data()) + i,
                           __ATOMIC_ACQUIRE);
  }
  void set_word(size_t i, uint64_t value) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(data()) + i, value,
                     __ATOMIC_RELEASE);
  }

 private:
  Mapping mapping_;
  HostRegistration registration_;
};

// Bazel's, or what a bundle of tests/gpu/run.sh says.
std::string PluginPath() {
  if (std::getenv("MAYPOLE_GPU_PLUGIN") != nullptr) return DefaultPluginPath();
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/",
                      std::getenv("TEST_WORKSPACE"),
                      "/worker/backend/gpu/libmaypole_gpu.so");
}

class PluginGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* nccl = std::getenv("MAYPOLE_NCCL");
    auto driver = LoadDriver(PluginPath(), nccl == nullptr ? "" : nccl);
    // Where there is a GPU nothing may be skipped.
    if (driver.status().code() == absl::StatusCode::kUnavailable &&
        access("/dev/nvidiactl", F_OK) != 0) {
      GTEST_SKIP() << driver.status().message();
    }
    ASSERT_TRUE(driver.ok()) << driver.status();
    const auto devices = (*driver)->Devices();
    ASSERT_TRUE(devices.ok()) << devices.status();
    auto gpu = (*driver)->Open(devices->front().uuid);
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    gpu_ = *std::move(gpu);
    auto stream = OwnedStream::Create(*gpu_);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  OwnedMemory Allocate(uint64_t bytes) {
    auto memory = OwnedMemory::Allocate(*gpu_, bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : OwnedMemory();
  }
  Stream on() const { return stream_.get(); }
  void Finish() {
    const absl::Status status = gpu_->Synchronize(on());
    ASSERT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<Gpu> gpu_;
  OwnedStream stream_;  // after gpu_: given back before
};

TEST_F(PluginGpuTest, DescribesTheDevice) {
  const DeviceInfo& info = gpu_->device();
  EXPECT_THAT(info.uuid, testing::MatchesRegex(
                             "GPU-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-"
                             "[0-9a-f]+"));
  EXPECT_EQ(info.uuid.size(), 40u);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.compute_major, 8);
  EXPECT_GT(info.multiprocessors, 0);
  EXPECT_TRUE(info.exports_memory);
  EXPECT_TRUE(info.stream_flags);
}

TEST_F(PluginGpuTest, RoundsAllocationsUpAndGivesThemBack) {
  const auto before = gpu_->MemoryRoom();
  ASSERT_TRUE(before.ok());
  {
    const OwnedMemory memory = Allocate(256 * kMiB + 1);
    EXPECT_GT(memory.bytes(), 256 * kMiB);
    EXPECT_EQ(memory.bytes() % (2 * kMiB), 0u);
    const auto during = gpu_->MemoryRoom();
    ASSERT_TRUE(during.ok());
    EXPECT_GE(before->free_bytes - during->free_bytes, 256 * kMiB);
  }
  const auto after = gpu_->MemoryRoom();
  ASSERT_TRUE(after.ok());
  EXPECT_GE(after->free_bytes + 64 * kMiB, before->free_bytes);
}

TEST_F(PluginGpuTest, SaysHowMuchIsFreeWhenThereIsNotEnough) {
  const absl::Status status =
      gpu_->Allocate(gpu_->device().total_bytes + 1024 * kMiB).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("are free"));
}

TEST_F(PluginGpuTest, FillsAndCopies) {
  const HostPages host(*gpu_, kMiB);
  const OwnedMemory device = Allocate(kMiB);
  ASSERT_TRUE(gpu_->Fill(on(), device.address(), 0xabcd1234, kMiB / 4).ok());
  ASSERT_TRUE(
      gpu_->Copy(on(), host.address(), device.address(), kMiB - 8).ok());
  Finish();
  EXPECT_EQ(host.word(0), 0xabcd1234abcd1234u);
  EXPECT_EQ(host.word(kMiB / 8 - 2), 0xabcd1234abcd1234u);
  EXPECT_EQ(host.word(kMiB / 8 - 1), 0u);
}

TEST_F(PluginGpuTest, KernelCopiesAtAnyAddress) {
  HostPages from(*gpu_, kMiB), to(*gpu_, kMiB);
  std::mt19937_64 random(1);
  for (size_t i = 0; i < kMiB / 8; ++i) from.set_word(i, random());
  const OwnedMemory device = Allocate(kMiB);
  for (const int blocks : {0, 1, 7, 100000}) {
    for (const uint64_t shift : {0, 1, 16}) {
      const uint64_t bytes = kMiB - 33;
      std::memset(to.data(), 0, kMiB);
      ASSERT_TRUE(gpu_->KernelCopy(on(), device.address() + shift,
                                   from.address(), bytes, blocks)
                      .ok());
      ASSERT_TRUE(gpu_->KernelCopy(on(), to.address() + shift,
                                   device.address() + shift, bytes, blocks)
                      .ok());
      Finish();
      EXPECT_EQ(0, std::memcmp(to.data() + shift, from.data(), bytes))
          << blocks << " blocks, shift " << shift;
      EXPECT_EQ(to.data()[shift + bytes], std::byte{0});
    }
  }
}

struct ReduceCase {
  DType dtype;
  Op op;
  uint32_t inputs;
  uint64_t elements;
  uint64_t offset;  // bytes
};

// NaN, infinity and subnormals are among the inputs; the result has the bits of
// common/reduce, but for NaN's.
bool SameOrBothNan(DType dtype, const std::byte* a, const std::byte* b) {
  if (std::memcmp(a, b, SizeOf(dtype)) == 0) return true;
  const auto nan = [dtype](const std::byte* at) {
    double d;
    float f;
    uint16_t h;
    switch (dtype) {
      case DType::kFloat64:
        std::memcpy(&d, at, 8);
        return std::isnan(d);
      case DType::kFloat32:
        std::memcpy(&f, at, 4);
        return std::isnan(f);
      case DType::kFloat16:
        std::memcpy(&h, at, 2);
        return std::isnan(HalfToFloat(h));
      default:
        std::memcpy(&h, at, 2);
        return std::isnan(Bfloat16ToFloat(h));
    }
  };
  return nan(a) && nan(b);
}

void CheckReduce(Gpu& gpu, Stream stream, const ReduceCase& c) {
  SCOPED_TRACE(absl::StrCat(std::string(Name(c.dtype)), " ",
                            std::string(Name(c.op)), " ", c.inputs, " of ",
                            c.elements, " at ", c.offset));
  const uint64_t bytes = c.elements * SizeOf(c.dtype);
  const uint64_t room = (bytes + c.offset + 4095) / 4096 * 4096;
  const HostPages host(gpu, room * (c.inputs + 1));
  std::mt19937_64 random(c.inputs * 1000 + c.elements);
  std::vector<const std::byte*> inputs;
  std::vector<Address> addresses;
  for (uint32_t k = 0; k < c.inputs; ++k) {
    std::byte* at = host.data() + k * room + c.offset;
    for (uint64_t i = 0; i + 2 <= bytes; i += 2) {
      const auto bits = static_cast<uint16_t>(random());
      std::memcpy(at + i, &bits, 2);
    }
    inputs.push_back(at);
    addresses.push_back(host.address() + k * room + c.offset);
  }
  std::vector<std::byte> want(bytes);
  Reduce(c.dtype, c.op, inputs, want.data(), c.elements, Epilogue{1, 0.5});
  std::byte* fresh = host.data() + c.inputs * room + c.offset;
  // To a buffer of its own and back to the last input.
  const std::vector<Address> outputs = {
      host.address() + c.inputs * room + c.offset, addresses.back()};
  const absl::Status status = gpu.Reduce(stream, {.inputs = addresses,
                                                  .outputs = outputs,
                                                  .elements = c.elements,
                                                  .dtype = c.dtype,
                                                  .op = c.op,
                                                  .scale = 0.5});
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(gpu.Synchronize(stream).ok());
  const std::byte* got[] = {fresh, inputs.back()};
  for (uint64_t i = 0; i < bytes; i += SizeOf(c.dtype)) {
    for (const std::byte* at : got) {
      ASSERT_TRUE(SameOrBothNan(c.dtype, at + i, want.data() + i))
          << "byte " << i;
    }
  }
}

TEST_F(PluginGpuTest, ReducesToTheBitsOfCommonReduce) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16}) {
    for (const Op op : {Op::kSum, Op::kMin, Op::kMax}) {
      for (const uint32_t inputs : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
        CheckReduce(*gpu_, on(), {dtype, op, inputs, 10007, 0});
      }
      CheckReduce(*gpu_, on(), {dtype, op, 3, 1001, SizeOf(dtype)});
      CheckReduce(*gpu_, on(), {dtype, op, 2, 3, 0});
    }
  }
}

TEST_F(PluginGpuTest, ReducesMoreThanTheGridAtOnce) {
  CheckReduce(*gpu_, on(), {DType::kFloat32, Op::kSum, 2, 16 * kMiB + 5, 0});
  CheckReduce(*gpu_, on(), {DType::kBfloat16, Op::kSum, 8, 4 * kMiB + 5, 0});
}

bool DoneWithin(Gpu& gpu, Stream stream, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < deadline) {
    const absl::StatusOr<bool> done = gpu.Done(stream);
    EXPECT_TRUE(done.ok()) << done.status();
    if (!done.ok() || *done) return true;
    std::this_thread::yield();
  }
  return false;
}

constexpr std::chrono::milliseconds kLong{5000}, kShort{50};

TEST_F(PluginGpuTest, AStreamWaitsForAFlagOfTheHost) {
  HostPages host(*gpu_, 4096);
  const Address flag = host.address(), answer = host.address() + 8;
  ASSERT_TRUE(gpu_->WaitValue(on(), flag, 7).ok());
  ASSERT_TRUE(gpu_->WriteValue(on(), answer, ~uint64_t{0}).ok());
  EXPECT_FALSE(DoneWithin(*gpu_, on(), kShort));
  host.set_word(0, 6);
  EXPECT_FALSE(DoneWithin(*gpu_, on(), kShort));
  EXPECT_EQ(host.word(1), 0u);
  host.set_word(0, 9);
  EXPECT_TRUE(DoneWithin(*gpu_, on(), kLong));
  EXPECT_EQ(host.word(1), ~uint64_t{0});
}

TEST_F(PluginGpuTest, FlagsAreComparedAsSignedDifferences) {
  HostPages host(*gpu_, 4096);
  host.set_word(0, 2);  // three after the greatest
  ASSERT_TRUE(gpu_->WaitValue(on(), host.address(), ~uint64_t{0}).ok());
  EXPECT_TRUE(DoneWithin(*gpu_, on(), kLong));
  ASSERT_TRUE(gpu_->WaitValue(on(), host.address(), 1, WaitFor::kEqual).ok());
  EXPECT_FALSE(DoneWithin(*gpu_, on(), kShort));
  host.set_word(0, 1);
  EXPECT_TRUE(DoneWithin(*gpu_, on(), kLong));
}

TEST_F(PluginGpuTest, AFlagInDeviceMemoryOrdersTwoStreams) {
  const OwnedMemory memory = Allocate(kMiB);
  const HostPages host(*gpu_, 4096);
  auto other = OwnedStream::Create(*gpu_);
  ASSERT_TRUE(other.ok());
  const Address flag = memory.address(), data = memory.address() + 4096;
  ASSERT_TRUE(gpu_->Fill(on(), flag, 0, 2).ok());
  Finish();
  ASSERT_TRUE(gpu_->WaitValue(other->get(), flag, 1).ok());
  ASSERT_TRUE(gpu_->Copy(other->get(), host.address(), data, 4096).ok());
  ASSERT_TRUE(gpu_->Spin(on(), 1, 10'000'000).ok());
  ASSERT_TRUE(gpu_->Fill(on(), data, 5, 1024).ok());
  ASSERT_TRUE(gpu_->WriteValue(on(), flag, 1).ok());
  EXPECT_TRUE(DoneWithin(*gpu_, other->get(), kLong));
  EXPECT_EQ(host.word(0), 0x500000005u);
  EXPECT_EQ(host.word(511), 0x500000005u);
}

// CUDA loads a kernel at its first launch, and waits for the context then: the
// plugin must have loaded all of them before.
TEST_F(PluginGpuTest, WorkIsEnqueuedAndRunsWhileAnotherStreamWaits) {
  HostPages host(*gpu_, 4096);
  const OwnedMemory memory = Allocate(kMiB);
  auto waiting = OwnedStream::Create(*gpu_);
  ASSERT_TRUE(waiting.ok());
  ASSERT_TRUE(gpu_->WaitValue(waiting->get(), host.address(), 1).ok());
  std::atomic<bool> ended{false}, released{false};
  std::thread watchdog([&] {
    for (int i = 0; i < 100 && !ended; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    released = !ended;
    host.set_word(0, 1);
  });
  const Address at = memory.address();
  EXPECT_TRUE(gpu_->Fill(on(), at, 1, 1024).ok());
  EXPECT_TRUE(gpu_->Copy(on(), at + 4096, at, 4096).ok());
  EXPECT_TRUE(gpu_->KernelCopy(on(), at + 8192, at, 4096, 0).ok());
  EXPECT_TRUE(gpu_->Spin(on(), 1, 1000).ok());
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16}) {
    const std::vector<Address> inputs(7, at), outputs = {at + 12288};
    EXPECT_TRUE(gpu_->Reduce(on(), {.inputs = inputs,
                                    .outputs = outputs,
                                    .elements = 512,
                                    .dtype = dtype,
                                    .op = Op::kMax})
                    .ok());
  }
  EXPECT_TRUE(DoneWithin(*gpu_, on(), kLong));
  EXPECT_FALSE(*gpu_->Done(waiting->get()));
  ended = true;
  watchdog.join();
  EXPECT_FALSE(released) << "it needed the other stream to go on";
  EXPECT_TRUE(DoneWithin(*gpu_, waiting->get(), kLong));
}

TEST_F(PluginGpuTest, EventsTimeASpin) {
  auto begin = OwnedEvent::Create(*gpu_, EventUse::kTiming);
  auto end = OwnedEvent::Create(*gpu_, EventUse::kTiming);
  ASSERT_TRUE(begin.ok() && end.ok());
  ASSERT_TRUE(gpu_->Record(begin->get(), on()).ok());
  ASSERT_TRUE(gpu_->Spin(on(), 8, 20'000'000).ok());
  ASSERT_TRUE(gpu_->Record(end->get(), on()).ok());
  EXPECT_EQ(gpu_->Milliseconds(begin->get(), end->get()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(*gpu_->EventDone(end->get()));
  Finish();
  EXPECT_TRUE(*gpu_->EventDone(end->get()));
  const auto elapsed = gpu_->Milliseconds(begin->get(), end->get());
  ASSERT_TRUE(elapsed.ok()) << elapsed.status();
  EXPECT_GE(*elapsed, 19.9);
  EXPECT_LT(*elapsed, 1000);
}

TEST_F(PluginGpuTest, ImportedMemoryIsTheExportedOne) {
  HostPages host(*gpu_, 4096);
  OwnedMemory exported = Allocate(4 * kMiB);
  auto fd = gpu_->Export(exported.address());
  ASSERT_TRUE(fd.ok()) << fd.status();
  auto imported = OwnedMemory::Import(*gpu_, fd->get(), exported.bytes());
  ASSERT_TRUE(imported.ok()) << imported.status();
  fd->Reset();
  EXPECT_EQ(gpu_->Export(imported->address()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(imported->address(), exported.address());
  ASSERT_TRUE(gpu_->Fill(on(), exported.address(), 3, kMiB).ok());
  Finish();
  exported.Reset();  // lives on: it is mapped
  ASSERT_TRUE(gpu_->Copy(on(), host.address(),
                         imported->address() + 4 * kMiB - 4096, 4096)
                  .ok());
  Finish();
  EXPECT_EQ(host.word(511), 0x300000003u);
}

absl::StatusCode CodeOf(const absl::Status& status) { return status.code(); }
template <typename T>
absl::StatusCode CodeOf(const absl::StatusOr<T>& result) {
  return result.status().code();
}

TEST_F(PluginGpuTest, RefusesWhatIsWrong) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  const auto memory = gpu_->Allocate(kMiB);
  ASSERT_TRUE(memory.ok());
  const Address at = memory->address;
  EXPECT_EQ(CodeOf(gpu_->Allocate(0)), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->Allocate(~uint64_t{0})), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->Free(at + 16)), kPrecondition);
  EXPECT_EQ(CodeOf(gpu_->Export(at + 16)), kPrecondition);
  EXPECT_EQ(CodeOf(gpu_->Import(-1, memory->bytes)), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->Import(0, 5)), kInvalid);
  const Fd no_memory(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(gpu_->Import(no_memory.get(), memory->bytes).ok());
  EXPECT_EQ(CodeOf(gpu_->RegisterHost(&gpu_, 0)), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->UnregisterHost(&gpu_)), kPrecondition);
  EXPECT_EQ(CodeOf(gpu_->WriteValue(on(), at + 4, 1)), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->WaitValue(on(), 0, 1)), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->Copy(on(), at, at + 8, 16)), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->Fill(on(), at + 2, 1, 1)), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->Spin(on(), 0, 1)), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->Done({on().id + 1000})), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->EventDone({on().id})), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->JoinCommunicator({}, 2, 2)), kInvalid);
  EXPECT_TRUE(gpu_->Free(at).ok());
  EXPECT_EQ(CodeOf(gpu_->Free(at)), kPrecondition);

  auto event = OwnedEvent::Create(*gpu_, EventUse::kOrder);
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(CodeOf(gpu_->ExportEvent(event->get())), kInvalid);
  EXPECT_EQ(CodeOf(gpu_->Milliseconds(event->get(), event->get())), kInvalid);
  Finish();  // nothing of it was enqueued, the context is whole
}

TEST_F(PluginGpuTest, AnyThreadMayCall) {
  const OwnedMemory memory = Allocate(kMiB);
  const HostPages host(*gpu_, 4096);
  std::thread([&] {
    EXPECT_TRUE(gpu_->Fill(on(), memory.address(), 9, 1024).ok());
    EXPECT_TRUE(gpu_->Copy(on(), host.address(), memory.address(), 4096).ok());
    EXPECT_TRUE(gpu_->Synchronize(on()).ok());
  }).join();
  EXPECT_EQ(host.word(0), 0x900000009u);
}

// One member: no other process is needed.
TEST_F(PluginGpuTest, JoinsACommunicatorOfOne) {
  const auto id = gpu_->MakeNcclId();
  if (CodeOf(id) == absl::StatusCode::kUnavailable) {
    GTEST_SKIP() << id.status().message();
  }
  ASSERT_TRUE(id.ok()) << id.status();
  const auto joined = gpu_->JoinCommunicator(*id, 1, 0);
  ASSERT_TRUE(joined.ok()) << joined.status();
  OwnedCommunicator communicator(*gpu_, *joined);
  const auto ready = [&] {
    for (int i = 0; i < 3000; ++i) {
      const auto state = gpu_->PollCommunicator(communicator.get());
      EXPECT_TRUE(state.ok()) << state.status();
      if (!state.ok()) return false;
      if (*state == CommunicatorState::kReady) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  };
  ASSERT_TRUE(ready());
  const OwnedMemory memory = Allocate(kMiB);
  const HostPages host(*gpu_, 4096);
  ASSERT_TRUE(gpu_->Fill(on(), memory.address(), 4, 1024).ok());
  EXPECT_TRUE(gpu_->AllReduce(communicator.get(), on(), memory.address(), 1024,
                              DType::kInt32)
                  .ok());
  ASSERT_TRUE(ready());
  ASSERT_TRUE(gpu_->Copy(on(), host.address(), memory.address(), 4096).ok());
  Finish();
  EXPECT_EQ(host.word(0), 0x400000004u);
}

}  // namespace
}  // namespace maypole::gpu
