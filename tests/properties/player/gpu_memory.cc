#include "tests/properties/player/gpu_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace maypole::properties {
namespace {

using cuda::CUDA_SUCCESS;
using cuda::CUdeviceptr;
using cuda::CUresult;
using cuda::CurrentGpu;

CUdeviceptr Address(const std::byte* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

void Must(const Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "WRONG: the test's own call of the GPU: %s\n",
               s.message().c_str());
  std::abort();
}

}  // namespace

void GpuMemory::Free::operator()(std::byte* address) const {
  driver->cuMemFree(Address(address));
}

GpuMemory::GpuMemory() {
  Must(cuda::LoadDriver(&driver_));
  Must(cuda::Gpu::Open(*driver_, 0, &gpu_));
  const CurrentGpu current(*gpu_);
  streams_.push_back(nullptr);
  for (const unsigned flags : {0u, cuda::CU_STREAM_NON_BLOCKING}) {
    cuda::CUstream stream = nullptr;
    Must(
        gpu_->Check(driver_->cuStreamCreate(&stream, flags), "cuStreamCreate"));
    streams_.push_back(stream);
  }
}

GpuMemory::Block GpuMemory::Allocate(size_t bytes) const {
  const CurrentGpu current(*gpu_);
  CUdeviceptr address = 0;
  Must(gpu_->Check(driver_->cuMemAlloc(&address, std::max<size_t>(bytes, 1)),
                   "cuMemAlloc"));
  return Block(reinterpret_cast<std::byte*>(address), Free{driver_});
}

void GpuMemory::Write(const Block& to, const std::byte* from, size_t bytes,
                      cuda::CUstream stream) const {
  if (bytes == 0) return;
  const CurrentGpu current(*gpu_);
  Must(gpu_->Check(
      driver_->cuMemcpyAsync(Address(to.get()), Address(from), bytes, stream),
      "cuMemcpyAsync"));
}

void GpuMemory::Read(const std::byte* from, std::byte* to, size_t bytes,
                     cuda::CUstream stream) const {
  if (bytes == 0) return;
  const CurrentGpu current(*gpu_);
  Must(gpu_->Check(
      driver_->cuMemcpyAsync(Address(to), Address(from), bytes, stream),
      "cuMemcpyAsync"));
  Must(
      gpu_->Check(driver_->cuStreamSynchronize(stream), "cuStreamSynchronize"));
}

}  // namespace maypole::properties
