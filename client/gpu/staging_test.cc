// CUDA tensors over the CPU path, on the fake driver: ranks are threads of one
// process, with a real socket and board, so that ThreadSanitizer can check
// them. The environment's seed makes the GPU's work late
// (tests/gpu/fake/config.h).
#include "client/gpu/staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/api/client.h"
#include "client/testing/fake_executor.h"
#include "tests/gpu/fake/fake_testing.h"

namespace maypole {
namespace {

using cuda::CUDA_ERROR_NOT_READY;
using cuda::CUDA_SUCCESS;
using cuda::CUdeviceptr;
using cuda::CUstream;
using cuda::fake::ContextScope;
using cuda::fake::cuda;
using cuda::fake::more;
using Bytes = std::vector<std::byte>;

class StagingTest : public cuda::fake::FakeTest {
 protected:
  void SetUp() override {
    FakeTest::SetUp();
    std::string dir = std::string(getenv("TEST_TMPDIR")) + "/sXXXXXX";
    ASSERT_NE(mkdtemp(dir.data()), nullptr);
    ASSERT_EQ(chdir(dir.c_str()), 0);  // socket paths are short
  }

  // Runs `rank` in one thread per rank, each with its client.
  void Run(int ranks, const std::function<void(int, Client&)>& rank,
           bool async_completion = false) {
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        const ContextScope scope(context());
        RankOptions o;
        o.rank = o.local_rank = r;
        o.size = o.local_size = ranks;
        o.job = "test";
        o.agent = ranks > 1 ? "agent.sock" : "";
        o.async_completion = async_completion;
        std::unique_ptr<Client> client;
        const Status s = Client::Join(o, &client);
        ASSERT_TRUE(s.ok()) << s.message();
        rank(r, *client);
      });
    }
    for (auto& t : threads) t.join();
  }

  static RankOptions Alone() {
    RankOptions o;
    o.job = "test";
    o.agent = "agent.sock";
    return o;
  }

  // Memory on the device, filled in the order of the stream.
  CUdeviceptr OnDevice(const Bytes& bytes, CUstream stream) {
    const CUdeviceptr memory = Alloc(bytes.size());
    EXPECT_EQ(
        cuda().cuMemcpyAsync(memory, Address(bytes), bytes.size(), stream),
        CUDA_SUCCESS);
    return memory;
  }

  Bytes Read(CUdeviceptr memory, size_t bytes, CUstream stream) {
    Bytes out(bytes);
    if (bytes == 0) return out;
    EXPECT_EQ(cuda().cuMemcpyAsync(Address(out), memory, bytes, stream),
              CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuStreamSynchronize(stream), CUDA_SUCCESS);
    return out;
  }

  static CUdeviceptr Address(const Bytes& bytes) {
    return reinterpret_cast<CUdeviceptr>(bytes.data());
  }
};

Signature Shaped(Kind kind, DType dtype, std::vector<int64_t> shape) {
  Signature s;
  s.kind = kind;
  s.dtype = dtype;
  s.op = Op::kSum;
  s.device = Device::kGpu;
  s.dims = static_cast<uint8_t>(shape.size());
  std::copy(shape.begin(), shape.end(), s.shape);
  if (kind == Kind::kBroadcast) s.root = 1;
  return s;
}

Request OnGpu(const std::string& name, const Signature& s, CUdeviceptr input,
              CUdeviceptr output, CUstream stream) {
  Request r;
  r.name = name;
  r.signature = s;
  r.input = reinterpret_cast<const void*>(input);
  r.output = reinterpret_cast<void*>(output);
  r.stream = stream;
  return r;
}

// --- Every kind, against the CPU path
// ------------------------------------------

struct Case {
  Kind kind;
  DType dtype;
  int64_t rows;
  bool in_place;
};

// The same on all ranks.
std::vector<Case> SomeCases(uint32_t seed, int count) {
  std::mt19937 random(seed);
  constexpr Kind kKinds[] = {Kind::kAllreduce, Kind::kAllreduce,
                             Kind::kAllgather, Kind::kBroadcast,
                             Kind::kAlltoall,  Kind::kReducescatter};
  constexpr DType kTypes[] = {DType::kFloat32,  DType::kFloat16,
                              DType::kBfloat16, DType::kFloat64,
                              DType::kInt32,    DType::kUint8};
  constexpr int64_t kRows[] = {0, 3, 12, 999, 60000};
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    cases.push_back({kKinds[random() % 6], kTypes[random() % 6],
                     kRows[random() % 5], random() % 2 == 0});
  }
  return cases;
}

// Small integers in the bytes of any type: no NaNs.
Bytes SomeValues(uint64_t count, DType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count * SizeOf(dtype));
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(random() % 8);
  }
  return bytes;
}

// The result by the CPU path.
Bytes OnCpu(Client& client, const std::string& name, const Case& c,
            const Bytes& input, size_t output_bytes) {
  Request r;
  r.name = name;
  r.signature = Shaped(c.kind, c.dtype, {c.rows, 2});
  r.signature.device = Device::kCpu;
  Bytes output(output_bytes);
  r.input = input.data();
  r.output = Gathers(c.kind) ? nullptr : output.data();
  int64_t handle = 0;
  Status s = client.Submit(r, &handle);
  EXPECT_TRUE(s.ok()) << s.message();
  s = client.Wait(handle, -1);
  EXPECT_TRUE(s.ok()) << s.message();
  Result result;
  EXPECT_TRUE(client.GetResult(handle, &result).ok());
  if (Gathers(c.kind)) {
    const auto* data = static_cast<const std::byte*>(result.data);
    output.assign(data, data + result.bytes);
  }
  EXPECT_TRUE(client.Release(handle).ok());
  return output;
}

TEST_F(StagingTest, EveryKindGivesTheBitsOfTheCpuPath) {
  constexpr int kRanks = 3;
  FakeExecutor executor("agent.sock", kRanks);
  const std::vector<Case> cases = SomeCases(7, 60);
  Run(kRanks, [&](int rank, Client& client) {
    const CUstream streams[] = {NewStream(), NewStream(0), nullptr};
    struct Pending {
      int64_t handle;
      CUdeviceptr output;
    };
    std::vector<Pending> pending;
    std::vector<Bytes> inputs;
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      const Signature s = Shaped(c.kind, c.dtype, {c.rows, 2});
      const CUstream stream = streams[(i + rank) % 3];
      inputs.push_back(SomeValues(s.Elements(), c.dtype, 100 * i + rank));
      const Bytes& bytes = inputs.back();
      const CUdeviceptr input = bytes.empty() ? 0 : OnDevice(bytes, stream);
      const bool own = !c.in_place || c.kind == Kind::kReducescatter;
      const CUdeviceptr output = bytes.empty() || Gathers(c.kind) ? 0
                                 : own ? Alloc(bytes.size())
                                       : input;
      Pending p = {0, output};
      const Status submitted = client.Submit(
          OnGpu("g" + std::to_string(i), s, input, output, stream), &p.handle);
      ASSERT_TRUE(submitted.ok()) << submitted.message();
      // Later work on the stream may change the input.
      if (output != input && input != 0) {
        EXPECT_EQ(cuda().cuMemcpyAsync(input, Address(Bytes(bytes.size())),
                                       bytes.size(), stream),
                  CUDA_SUCCESS);
      }
      pending.push_back(p);
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      const Status waited = client.Wait(pending[i].handle, -1);
      ASSERT_TRUE(waited.ok()) << waited.message();
      Result result;
      ASSERT_TRUE(client.GetResult(pending[i].handle, &result).ok());
      EXPECT_EQ(result.data, nullptr);
      const auto bytes = static_cast<size_t>(result.bytes);
      const bool gathers = Gathers(cases[i].kind);
      const CUdeviceptr to =
          gathers && bytes > 0 ? Alloc(bytes) : pending[i].output;
      const CUstream stream = streams[i % 2];
      const Status copied =
          client.CopyResult(pending[i].handle, stream,
                            gathers ? reinterpret_cast<void*>(to) : nullptr);
      ASSERT_TRUE(copied.ok()) << copied.message();
      EXPECT_TRUE(client.Release(pending[i].handle).ok());
      const Bytes want =
          OnCpu(client, "c" + std::to_string(i), cases[i], inputs[i], bytes);
      EXPECT_EQ(Read(to, bytes, stream), want)
          << Name(cases[i].kind) << " " << Name(cases[i].dtype) << " "
          << cases[i].rows;
    }
  });
}

// --- When things happen
// ----------------------------------------------------------

// A rank alone waits only for the GPU.
TEST_F(StagingTest, ItIsPendingUntilTheStreamHasWrittenTheInput) {
  Run(1, [&](int, Client& client) {
    const CUstream stream = NewStream();
    const Bytes bytes(4096, std::byte{3});
    Delay(stream, 100);
    const CUdeviceptr memory = OnDevice(bytes, stream);
    const CUdeviceptr output = Alloc(bytes.size());
    int64_t handle = 0;
    ASSERT_TRUE(
        client
            .Submit(OnGpu("x", Shaped(Kind::kAllreduce, DType::kUint8, {4096}),
                          memory, output, stream),
                    &handle)
            .ok());
    bool done = true;
    ASSERT_TRUE(client.Poll(handle, &done).ok());
    EXPECT_FALSE(done);
    EXPECT_EQ(client.Wait(handle, 1).code(), Code::kDeadlineExceeded);
    EXPECT_EQ(client.CopyResult(handle, stream, nullptr).code(),
              Code::kFailedPrecondition);
    EXPECT_TRUE(client.Wait(handle, -1).ok());
    EXPECT_TRUE(client.CopyResult(handle, stream, nullptr).ok());
    EXPECT_EQ(Read(output, bytes.size(), stream), bytes);
    EXPECT_TRUE(client.Release(handle).ok());
  });
}

// Rank 0 does not call Maypole after its submission: its watching thread must
// see that the input is ready.
TEST_F(StagingTest, NobodyNeedsToWaitForItToArrive) {
  FakeExecutor executor("agent.sock", 2);
  std::atomic<bool> other_done{false};
  Run(2, [&](int rank, Client& client) {
    const CUstream stream = NewStream();
    const Bytes bytes(4096, std::byte{1});
    if (rank == 0) Delay(stream, 20);
    const CUdeviceptr memory = OnDevice(bytes, stream);
    int64_t handle = 0;
    ASSERT_TRUE(
        client
            .Submit(OnGpu("x", Shaped(Kind::kAllreduce, DType::kUint8, {4096}),
                          memory, memory, stream),
                    &handle)
            .ok());
    if (rank == 0) {
      while (!other_done) std::this_thread::yield();
    }
    EXPECT_TRUE(client.Wait(handle, -1).ok());
    other_done = true;
    EXPECT_TRUE(client.CopyResult(handle, stream, nullptr).ok());
    EXPECT_EQ(Read(memory, 4096, stream), Bytes(4096, std::byte{2}));
    EXPECT_TRUE(client.Release(handle).ok());
  });
}

TEST_F(StagingTest, AsyncCompletionReturnsWhenTheCopyIsEnqueued) {
  Run(
      1,
      [&](int, Client& client) {
        const CUstream stream = NewStream();
        const CUstream busy = NewStream();
        const Bytes bytes(4096, std::byte{5});
        const CUdeviceptr memory = OnDevice(bytes, stream);
        const CUdeviceptr output = Alloc(bytes.size());
        int64_t handle = 0;
        ASSERT_TRUE(
            client
                .Submit(
                    OnGpu("x", Shaped(Kind::kAllreduce, DType::kUint8, {4096}),
                          memory, output, stream),
                    &handle)
                .ok());
        EXPECT_TRUE(client.Wait(handle, -1).ok());
        Delay(busy, 100);
        EXPECT_TRUE(client.CopyResult(handle, busy, nullptr).ok());
        EXPECT_EQ(cuda().cuStreamQuery(busy), CUDA_ERROR_NOT_READY);
        EXPECT_TRUE(
            client.Release(handle).ok());  // the copy keeps what it needs
        EXPECT_EQ(Read(output, bytes.size(), busy), bytes);
      },
      /*async_completion=*/true);
}

// Rank 0 receives. The work that its stream still does on the tensor comes
// before the result, whichever stream requests the result.
TEST_F(StagingTest, TheResultComesAfterEarlierWorkOnTheOutput) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [&](int rank, Client& client) {
    const CUstream stream = NewStream();
    const CUstream other = NewStream();
    if (rank == 0) Delay(stream, 100);
    const Bytes own(4096, static_cast<std::byte>(rank));
    const CUdeviceptr memory = OnDevice(own, stream);
    int64_t handle = 0;
    ASSERT_TRUE(
        client
            .Submit(OnGpu("x", Shaped(Kind::kBroadcast, DType::kUint8, {4096}),
                          memory, memory, stream),
                    &handle)
            .ok());
    EXPECT_TRUE(client.Wait(handle, -1).ok());
    EXPECT_TRUE(client.CopyResult(handle, other, nullptr).ok());
    EXPECT_EQ(cuda().cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(Read(memory, 4096, other), Bytes(4096, std::byte{1}));
    EXPECT_TRUE(client.Release(handle).ok());
  });
}

TEST_F(StagingTest, ShutdownDoesNotWaitForTheGpu) {
  Run(1, [&](int, Client& client) {
    const CUstream stream = NewStream();
    Delay(stream, 300);
    const CUdeviceptr memory = OnDevice(Bytes(4096), stream);
    int64_t handle = 0;
    ASSERT_TRUE(
        client
            .Submit(OnGpu("x", Shaped(Kind::kAllreduce, DType::kUint8, {4096}),
                          memory, memory, stream),
                    &handle)
            .ok());
    client.Leave();
    EXPECT_EQ(cuda().cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(client.Wait(handle, -1).code(), Code::kAborted);
    EXPECT_TRUE(client.Release(handle).ok());
  });
}

// As after the loss of a peer: the operation has ended with an error and its
// handle is released, but the GPU has not reached its input yet.
TEST_F(StagingTest, AfterAnErrorShutdownDoesNotWaitForTheGpu) {
  const CUstream stream = NewStream();
  for (int epoch = 0; epoch < 2; ++epoch) {
    FakeExecutor executor("agent.sock", 1);
    std::unique_ptr<Client> client;
    ASSERT_TRUE(Client::Join(Alone(), &client).ok());
    const CUdeviceptr memory = OnDevice(Bytes(4096), stream);
    if (epoch == 0) Delay(stream, 300);
    int64_t handle = 0;
    ASSERT_TRUE(
        client
            ->Submit(OnGpu("x", Shaped(Kind::kAllreduce, DType::kUint8, {4096}),
                           memory, memory, stream),
                     &handle)
            .ok());
    if (epoch == 0) {
      executor.Die();
      EXPECT_EQ(client->Wait(handle, -1).code(), Code::kAborted);
      EXPECT_TRUE(client->Release(handle).ok());
      client->Leave();
      client.reset();
      EXPECT_EQ(cuda().cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    } else {  // the next one works, whatever is left of the first
      EXPECT_TRUE(client->Wait(handle, -1).ok());
      EXPECT_TRUE(client->CopyResult(handle, stream, nullptr).ok());
      EXPECT_TRUE(client->Release(handle).ok());
    }
  }
}

TEST_F(StagingTest, AnotherCopyOfTheResultMayBeAskedFor) {
  Run(1, [&](int, Client& client) {
    const CUstream stream = NewStream(), other = NewStream();
    const Bytes bytes(70000, std::byte{9});
    const CUdeviceptr memory = OnDevice(bytes, stream);
    int64_t handle = 0;
    ASSERT_TRUE(
        client
            .Submit(OnGpu("x", Shaped(Kind::kAllgather, DType::kUint8, {70000}),
                          memory, 0, stream),
                    &handle)
            .ok());
    EXPECT_TRUE(client.Wait(handle, -1).ok());
    EXPECT_EQ(client.CopyResult(handle, stream, nullptr).code(),
              Code::kInvalidArgument);  // it has no output of its own
    const CUdeviceptr first = Alloc(bytes.size()), second = Alloc(bytes.size());
    for (const auto& [to, on] :
         {std::pair(first, stream), std::pair(second, other)}) {
      EXPECT_TRUE(
          client.CopyResult(handle, on, reinterpret_cast<void*>(to)).ok());
      EXPECT_EQ(Read(to, bytes.size(), on), bytes);
    }
    EXPECT_TRUE(client.Release(handle).ok());
  });
}

// Each size exceeds the kept blocks.
TEST_F(StagingTest, GrowingTensorsDoNotGrowMemoryWithoutBound) {
  Run(1, [&](int, Client& client) {
    const CUstream stream = NewStream();
    const CUdeviceptr memory = Alloc(size_t{120} << 20);
    for (int64_t mib = 10; mib <= 120; mib += 10) {
      int64_t handle = 0;
      ASSERT_TRUE(client
                      .Submit(OnGpu("x",
                                    Shaped(Kind::kAllreduce, DType::kUint8,
                                           {mib << 20}),
                                    memory, memory, stream),
                              &handle)
                      .ok());
      EXPECT_TRUE(client.Wait(handle, -1).ok());
      // A block that the GPU may still read is in use.
      EXPECT_EQ(cuda().cuStreamSynchronize(stream), CUDA_SUCCESS);
      EXPECT_TRUE(client.Release(handle).ok());
    }
    // 10 + 20 + ... would be 780.
    EXPECT_LE(client.staging_bytes(), uint64_t{300} << 20);
  });
}

TEST_F(StagingTest, StepsUseTheSameMemory) {
  Run(1, [&](int, Client& client) {
    const CUstream stream = NewStream();
    const CUdeviceptr memory = OnDevice(Bytes(3 << 20), stream);
    size_t after_first = 0;
    for (int step = 0; step < 20; ++step) {
      int64_t handles[2];
      for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(client
                        .Submit(OnGpu("x" + std::to_string(i),
                                      Shaped(Kind::kAllreduce, DType::kUint8,
                                             {i == 0 ? 3 << 20 : 100}),
                                      memory, memory, stream),
                                &handles[i])
                        .ok());
      }
      for (const int64_t handle : handles) {
        EXPECT_TRUE(client.Wait(handle, -1).ok());
        EXPECT_TRUE(client.CopyResult(handle, stream, nullptr).ok());
        EXPECT_TRUE(client.Release(handle).ok());
      }
      const auto now = static_cast<size_t>(client.staging_bytes());
      if (step == 0) after_first = now;
      EXPECT_EQ(now, after_first);
    }
    EXPECT_EQ(after_first, StagingMemory::kSlabBytes + (4 << 20));
  });
}

// --- What is refused
// ----------------------------------------------------------

TEST_F(StagingTest, RefusesWhatItCannotUse) {
  Run(1, [&](int, Client& client) {
    const Signature s = Shaped(Kind::kAllreduce, DType::kUint8, {64});
    const CUstream stream = NewStream();
    const CUdeviceptr memory = Alloc(64);
    const Bytes host(64);
    auto refusal = [&](CUdeviceptr input, CUdeviceptr output, CUstream on) {
      int64_t handle = 0;
      const Status refused =
          client.Submit(OnGpu("x", s, input, output, on), &handle);
      EXPECT_FALSE(refused.ok());
      return refused.message();
    };
    EXPECT_EQ(refusal(Address(host), memory, stream),
              "allreduce 'x': input: the address is not one of CUDA device "
              "memory in this process");
    EXPECT_EQ(refusal(memory, Address(host), stream),
              "allreduce 'x': output: the address is not one of CUDA device "
              "memory in this process");

    cuda::CUcontext other = nullptr;
    ASSERT_EQ(cuda().cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
    cuda().cuCtxPushCurrent(other);
    const CUdeviceptr there = Alloc(64);
    const CUstream stream_there = NewStream();
    cuda().cuCtxPopCurrent(nullptr);
    EXPECT_THAT(refusal(memory, there, stream),
                testing::HasSubstr("input and output are on different GPUs, "
                                   "GPU-"));
    EXPECT_THAT(refusal(memory, memory, stream_there),
                testing::HasSubstr("the stream belongs to another device"));

    ASSERT_EQ(more().cuStreamBeginCapture_v2(
                  stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_SUCCESS);
    EXPECT_EQ(refusal(memory, memory, stream),
              "allreduce 'x': the stream is capturing a CUDA graph; Maypole's "
              "operations cannot be part of a graph: call them outside of the "
              "capture");
    void* graph = nullptr;
    EXPECT_EQ(more().cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    EXPECT_EQ(client.pending(), 0);
  });
}

// Operations on other streams, and the watching thread, leave a capture alone.
TEST_F(StagingTest, DoesNotBreakACaptureOfAnotherStream) {
  Run(1, [&](int, Client& client) {
    const CUstream captured = NewStream(), stream = NewStream();
    const CUdeviceptr memory = OnDevice(Bytes(64), stream);
    ASSERT_EQ(more().cuStreamBeginCapture_v2(
                  captured, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_SUCCESS);
    int64_t handle = 0;
    const Status s =
        client.Submit(OnGpu("x", Shaped(Kind::kAllreduce, DType::kUint8, {64}),
                            memory, memory, stream),
                      &handle);
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_TRUE(client.Wait(handle, -1).ok());
    const Status copied = client.CopyResult(handle, stream, nullptr);
    EXPECT_TRUE(copied.ok()) << copied.message();
    EXPECT_TRUE(client.Release(handle).ok());
    void* graph = nullptr;
    EXPECT_EQ(more().cuStreamEndCapture(captured, &graph), CUDA_SUCCESS);
  });
}

TEST_F(StagingTest, RanksMustAgreeOnCpuOrGpu) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [&](int rank, Client& client) {
    Bytes host(64);
    const CUstream stream = NewStream();
    const CUdeviceptr memory = OnDevice(host, stream);
    Request r = OnGpu("x", Shaped(Kind::kAllreduce, DType::kUint8, {64}),
                      memory, memory, stream);
    if (rank == 1) {
      r.signature.device = Device::kCpu;
      r.input = r.output = host.data();
    }
    int64_t handle = 0;
    ASSERT_TRUE(client.Submit(r, &handle).ok());
    const Status s = client.Wait(handle, -1);
    EXPECT_EQ(s.code(), Code::kFailedPrecondition);
    EXPECT_EQ(s.message(),
              "allreduce 'x': mismatched devices: rank 0 submitted GPU, rank 1 "
              "submitted CPU; every rank must submit the same device "
              "class");
    EXPECT_TRUE(client.Release(handle).ok());
  });
}

// Both are computed on the host. The inputs of a group's members are late.
TEST_F(StagingTest, AdasumAndFactorsOfIntegers) {
  FakeExecutor executor("agent.sock", 2);
  Run(2, [&](int rank, Client& client) {
    const CUstream stream = NewStream(), other = NewStream();
    // 1.0 in the upper half of the elements on one rank, in the lower one on
    // the other: orthogonal.
    const float one = 1.f;
    Bytes halves(4096), all(4096), ints(4096, std::byte{7});
    for (size_t i = 0; i < 1024; ++i) {
      std::memcpy(&all[4 * i], &one, 4);
      if (i / 512 == static_cast<size_t>(rank)) {
        std::memcpy(&halves[4 * i], &one, 4);
      }
    }
    Delay(rank == 0 ? stream : other, 10);
    const CUdeviceptr a = OnDevice(halves, stream), b = OnDevice(halves, other),
                      c = OnDevice(ints, stream);
    Signature s = Shaped(Kind::kAllreduce, DType::kFloat32, {1024});
    s.op = Op::kAdasum;
    int64_t handles[3] = {};
    ASSERT_TRUE(client
                    .SubmitGroup({OnGpu("a", s, a, a, stream),
                                  OnGpu("b", s, b, b, other)},
                                 handles)
                    .ok());
    Signature n = Shaped(Kind::kAllreduce, DType::kUint8, {4096});
    n.prescale = 0.5;
    n.postscale = 50.0;
    ASSERT_TRUE(client.Submit(OnGpu("c", n, c, c, stream), &handles[2]).ok());
    for (const int64_t handle : handles) {
      ASSERT_TRUE(client.Wait(handle, -1).ok());
      EXPECT_TRUE(client.CopyResult(handle, stream, nullptr).ok());
      EXPECT_TRUE(client.Release(handle).ok());
    }
    EXPECT_EQ(Read(a, 4096, stream), all);
    EXPECT_EQ(Read(b, 4096, stream), all);
    EXPECT_EQ(Read(c, 4096, stream), Bytes(4096, std::byte{255}));
  });
}

TEST_F(StagingTest, AGroupIsTakenWholeOrNotAtAll) {
  Run(1, [&](int, Client& client) {
    const CUstream stream = NewStream();
    const CUdeviceptr memory = OnDevice(Bytes(64), stream);
    const Bytes host(64);
    const Signature s = Shaped(Kind::kAllreduce, DType::kUint8, {64});
    int64_t handles[2] = {};
    const Status refused =
        client.SubmitGroup({OnGpu("a", s, memory, memory, stream),
                            OnGpu("b", s, Address(host), memory, stream)},
                           handles);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_EQ(client.pending(), 0);
    EXPECT_EQ(client.handles(), 0u);
    ASSERT_TRUE(client
                    .SubmitGroup({OnGpu("a", s, memory, memory, stream),
                                  OnGpu("b", s, memory, memory, stream)},
                                 handles)
                    .ok());
    for (const int64_t handle : handles) {
      EXPECT_TRUE(client.Wait(handle, -1).ok());
      EXPECT_TRUE(client.Release(handle).ok());
    }
  });
}

}  // namespace
}  // namespace maypole
