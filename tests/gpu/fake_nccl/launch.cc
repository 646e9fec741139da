#include "tests/gpu/fake_nccl/launch.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/gpu/fake_nccl/combine.h"
#include "tests/gpu/fake_nccl/config.h"
#include "tests/gpu/fake_nccl/driver.h"

namespace maypole::nccl::fake {
namespace {

using cuda::fake::FakeCudaRange;

// How many bytes a rank gives and gets.
size_t InputBytes(const Call& call, int rank, int ranks) {
  const size_t bytes = call.count * SizeOf(call.type);
  switch (call.kind) {
    case Kind::kBroadcast:
      return rank == call.peer ? bytes : 0;
    case Kind::kReduceScatter:
      return bytes * static_cast<size_t>(ranks);
    case Kind::kRecv:
      return 0;
    default:
      return bytes;
  }
}

size_t OutputBytes(const Call& call, int rank, int ranks) {
  const size_t bytes = call.count * SizeOf(call.type);
  switch (call.kind) {
    case Kind::kReduce:
      return rank == call.peer ? bytes : 0;
    case Kind::kAllGather:
      return bytes * static_cast<size_t>(ranks);
    case Kind::kSend:
      return 0;
    default:
      return bytes;
  }
}

// Input and output may be the same where NCCL's documents say so; else they
// must not overlap.
void CheckOverlap(const Call& call, int rank, const FakeCudaRange& from,
                  const FakeCudaRange& to) {
  const bool apart =
      from.start + from.bytes <= to.start || to.start + to.bytes <= from.start;
  if (apart || from.bytes == 0 || to.bytes == 0) return;
  const size_t part =
      static_cast<size_t>(rank) * call.count * SizeOf(call.type);
  const size_t from_part = call.kind == Kind::kReduceScatter ? part : 0;
  const size_t to_part = call.kind == Kind::kAllGather ? part : 0;
  if (from.start + from_part == to.start + to_part) return;
  Illegal(Describe(call) + ": input and output overlap");
}

struct Work {
  std::shared_ptr<Link> link;
  std::vector<Call> calls;
  std::vector<FakeCudaRange> ranges;  // input and output of each

  void Run(void* const* host) const {
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < calls.size(); ++i) {
      ids.push_back(link->Send(calls[i], host[2 * i], ranges[2 * i].bytes));
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      Link::Bytes output;
      if (!link->Wait(ids[i], &output)) continue;
      const size_t bytes = std::min(output.size(), ranges[2 * i + 1].bytes);
      if (bytes > 0) std::memcpy(host[2 * i + 1], output.data(), bytes);
    }
  }
};

std::unique_ptr<Work> MakeWork(const std::shared_ptr<Link>& link, int rank,
                               int ranks,
                               const std::vector<Operation>& operations) {
  auto work = std::make_unique<Work>();
  work->link = link;
  for (const Operation& o : operations) {
    work->calls.push_back(o.call);
    const FakeCudaRange from = {reinterpret_cast<cuda::CUdeviceptr>(o.from),
                                InputBytes(o.call, rank, ranks)};
    const FakeCudaRange to = {reinterpret_cast<cuda::CUdeviceptr>(o.to),
                              OutputBytes(o.call, rank, ranks)};
    CheckOverlap(o.call, rank, from, to);
    work->ranges.push_back(from);
    work->ranges.push_back(to);
  }
  return work;
}

}  // namespace

cuda::CUresult EnqueueLaunch(cuda::CUcontext context,
                             const std::shared_ptr<Link>& link, int rank,
                             int ranks,
                             const std::vector<Operation>& operations,
                             void* previous, void** launched) {
  auto work = MakeWork(link, rank, ranks, operations);
  std::vector<CUstream> streams;
  for (const Operation& o : operations) {
    if (std::find(streams.begin(), streams.end(), o.stream) == streams.end()) {
      streams.push_back(o.stream);
    }
  }
  const cuda::fake::FakeCudaLaunch launch = {
      .context = context,
      .streams = streams.data(),
      .stream_count = streams.size(),
      .previous = previous,
      .ranges = work->ranges.data(),
      .range_count = work->ranges.size(),
      .work =
          [](void* argument, void* const* host) {
            const std::unique_ptr<Work> own(static_cast<Work*>(argument));
            own->Run(host);
          },
      .argument = work.get(),
  };
  const cuda::CUresult error = OpenDriver()->enqueue(&launch, launched);
  if (error == cuda::CUDA_ERROR_INVALID_VALUE) {
    Illegal(Describe(operations[0].call) +
            ": an address is not memory that the GPU can access");
  }
  if (error == cuda::CUDA_SUCCESS) static_cast<void>(work.release());
  return error;
}

}  // namespace maypole::nccl::fake
