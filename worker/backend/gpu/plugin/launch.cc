// Launches the plugin's kernels: checks arguments and chooses grid sizes.
#include <algorithm>
#include <vector>

#include "worker/backend/gpu/plugin/device.h"
#include "worker/backend/gpu/plugin/kernels/kernels.h"
#include "worker/backend/gpu/plugin/ranges.h"
#include "worker/backend/gpu/plugin/reduction.h"

using maypole::DType;
using maypole::Op;
using maypole::gpu::plugin::Allocation;
using maypole::gpu::plugin::Check;
using maypole::gpu::plugin::CheckDisjoint;
using maypole::gpu::plugin::CopyKernel;
using maypole::gpu::plugin::CopyTask;
using maypole::gpu::plugin::ElementBytes;
using maypole::gpu::plugin::InvalidArgument;
using maypole::gpu::plugin::kMaxBuffers;
using maypole::gpu::plugin::kThreads;
using maypole::gpu::plugin::kVectorBytes;
using maypole::gpu::plugin::RangeOf;
using maypole::gpu::plugin::ReduceKernel;
using maypole::gpu::plugin::ReduceTask;
using maypole::gpu::plugin::SpinKernel;
using maypole::gpu::plugin::TaskOf;

namespace {

constexpr int kWarp = 32;

// Returns how many blocks have at least one vector per thread; at least 1.
uint64_t BlocksWithWork(uint64_t bytes) {
  constexpr uint64_t kBlockBytes = kThreads * kVectorBytes;
  return bytes / kBlockBytes + 1;
}

std::vector<const void*> AllKernels() {
  std::vector<const void*> kernels = {CopyKernel(), SpinKernel()};
  for (const DType dtype :
       {DType::kFloat16, DType::kFloat32, DType::kFloat64, DType::kBfloat16}) {
    for (const Op op : {Op::kSum, Op::kMin, Op::kMax}) {
      for (uint32_t inputs = 1; inputs <= kMaxBuffers; ++inputs) {
        kernels.push_back(ReduceKernel(dtype, op, inputs));
      }
    }
  }
  return kernels;
}

}  // namespace

namespace maypole::gpu::plugin {

const void* ReduceKernel(DType dtype, Op op, uint32_t inputs) {
  switch (dtype) {
    case DType::kFloat16:
      return ReduceFloat16Kernel(op, inputs);
    case DType::kFloat32:
      return ReduceFloat32Kernel(op, inputs);
    case DType::kFloat64:
      return ReduceFloat64Kernel(op, inputs);
    case DType::kBfloat16:
      return ReduceBfloat16Kernel(op, inputs);
    default:
      return nullptr;
  }
}

}  // namespace maypole::gpu::plugin

void MaypoleGpu::LoadKernels() {
  for (const void* kernel : AllKernels()) {
    cudaFuncAttributes attributes;
    Check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  }
}

// The driver's own fill and copy kernels are loaded at their first use, too.
void MaypoleGpu::LoadDriversKernels() {
  const Allocation memory =
      Allocation::Create(driver_, primary_.device(), granularity_);
  cudaStream_t stream = nullptr;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
        "cudaStreamCreateWithFlags");
  const uint64_t half = granularity_ / 2;
  const CUresult filled =
      driver_.memset_d32_async(memory.address(), 0, half / 4, stream);
  const cudaError_t copied =
      cudaMemcpyAsync(reinterpret_cast<void*>(memory.address() + half),
                      reinterpret_cast<const void*>(memory.address()), half,
                      cudaMemcpyDefault, stream);
  const cudaError_t done = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  Check(filled, "cuMemsetD32Async");
  Check(copied, "cudaMemcpyAsync");
  Check(done, "cudaStreamSynchronize");
}

int MaypoleGpu::BlocksThatFit(const void* kernel) {
  std::lock_guard<std::mutex> lock(mutex_);
  int& known = blocks_that_fit_[kernel];
  if (known == 0) {
    int per_multiprocessor = 0;
    Check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor,
                                                        kernel, kThreads, 0),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    known = std::max(1, per_multiprocessor * multiprocessors_);
  }
  return known;
}

void MaypoleGpu::Launch(uint64_t stream, const void* kernel, uint64_t blocks,
                        int threads, void* argument) {
  void* arguments[] = {argument};
  Check(cudaLaunchKernel(kernel, dim3(static_cast<unsigned int>(blocks)),
                         dim3(threads), arguments, 0, streams_.Get(stream)),
        "cudaLaunchKernel");
}

void MaypoleGpu::Reduce(uint64_t stream, const MaypoleGpuReduction& reduction) {
  ReduceTask task = TaskOf(reduction);
  streams_.Get(stream);  // checked even if there is nothing to do
  if (task.elements == 0) return;
  const void* kernel =
      ReduceKernel(static_cast<DType>(reduction.dtype),
                   static_cast<Op>(reduction.op), task.input_count);
  const uint64_t bytes = task.elements * ElementBytes(reduction.dtype);
  const uint64_t blocks =
      std::min<uint64_t>(BlocksThatFit(kernel), BlocksWithWork(bytes));
  Launch(stream, kernel, blocks, kThreads, &task);
}

void MaypoleGpu::Spin(uint64_t stream, int32_t blocks, int64_t nanoseconds) {
  if (blocks <= 0 || nanoseconds < 0) {
    throw InvalidArgument("cannot spin on " + std::to_string(blocks) +
                          " blocks for " + std::to_string(nanoseconds) +
                          " ns; there must be a block, and a time >= 0");
  }
  auto time = static_cast<uint64_t>(nanoseconds);
  Launch(stream, SpinKernel(), blocks, kWarp, &time);
}

void MaypoleGpu::KernelCopy(uint64_t stream, uint64_t to, uint64_t from,
                            uint64_t bytes, int32_t blocks) {
  if (blocks < 0) {
    throw InvalidArgument("cannot copy with " + std::to_string(blocks) +
                          " blocks");
  }
  streams_.Get(stream);
  if (bytes == 0) return;
  CheckDisjoint(RangeOf(to, bytes, 1), RangeOf(from, bytes, 1));
  CopyTask task = {reinterpret_cast<std::byte*>(to),
                   reinterpret_cast<const std::byte*>(from), bytes};
  const uint64_t wanted = blocks != 0 ? blocks : BlocksThatFit(CopyKernel());
  Launch(stream, CopyKernel(), std::min(wanted, BlocksWithWork(bytes)),
         kThreads, &task);
}
