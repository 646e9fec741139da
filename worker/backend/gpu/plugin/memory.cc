// Device memory and registered host memory.
#include <unistd.h>

#include <limits>
#include <utility>

#include "worker/backend/gpu/plugin/device.h"

using maypole::gpu::plugin::Allocation;
using maypole::gpu::plugin::Check;
using maypole::gpu::plugin::CudaFailure;
using maypole::gpu::plugin::FailedPrecondition;
using maypole::gpu::plugin::Failure;
using maypole::gpu::plugin::Hex;
using maypole::gpu::plugin::InvalidArgument;
using maypole::gpu::plugin::Unimplemented;

namespace {

Failure NoAllocation(uint64_t address) {
  return FailedPrecondition(
      Hex(address) +
      " is not the start of memory that was allocated or imported here (was it "
      "freed before?)");
}

}  // namespace

void MaypoleGpu::MemoryRoom(uint64_t* free, uint64_t* total) {
  size_t free_bytes = 0, total_bytes = 0;
  Check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  *free = free_bytes;
  *total = total_bytes;
}

uint64_t MaypoleGpu::Allocate(uint64_t* bytes) {
  if (!exports_memory_) {
    throw Unimplemented("this device cannot export memory");
  }
  if (*bytes == 0) throw InvalidArgument("cannot allocate 0 bytes");
  if (*bytes > std::numeric_limits<uint64_t>::max() - granularity_) {
    throw InvalidArgument("cannot allocate " + std::to_string(*bytes) +
                          " bytes");
  }
  *bytes = (*bytes + granularity_ - 1) / granularity_ * granularity_;
  try {
    return Keep(Allocation::Create(driver_, primary_.device(), *bytes));
  } catch (Failure& failure) {
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) == cudaSuccess) {
      failure.text += "; " + std::to_string(*bytes) +
                      " bytes were requested, " + std::to_string(free) +
                      " of " + std::to_string(total) + " are free";
    }
    throw;
  }
}

uint64_t MaypoleGpu::Import(int fd, uint64_t bytes) {
  if (!exports_memory_) {
    throw Unimplemented("this device cannot import memory");
  }
  if (fd < 0) throw InvalidArgument("the descriptor must not be negative");
  if (bytes == 0 || bytes % granularity_ != 0) {
    throw InvalidArgument(std::to_string(bytes) +
                          " bytes is not a size of exported memory; it must be "
                          "a positive multiple of " +
                          std::to_string(granularity_));
  }
  return Keep(Allocation::Import(driver_, primary_.device(), fd, bytes));
}

uint64_t MaypoleGpu::Keep(Allocation allocation) {
  const uint64_t address = allocation.address();
  std::lock_guard<std::mutex> lock(mutex_);
  allocations_.emplace(address, std::move(allocation));
  return address;
}

int MaypoleGpu::Export(uint64_t address) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) throw NoAllocation(address);
  return found->second.Export();
}

void MaypoleGpu::Free(uint64_t address) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) throw NoAllocation(address);
  auto node = allocations_.extract(found);
  lock.unlock();
  // If memory is unmapped while a kernel uses it, the whole context is lost.
  const cudaError_t waited = cudaDeviceSynchronize();
  const CUresult released = node.mapped().Release();
  Check(waited, "cudaDeviceSynchronize");
  if (released != CUDA_SUCCESS) {
    throw CudaFailure(released, "releasing memory at " + Hex(address));
  }
}

uint64_t MaypoleGpu::RegisterHost(void* host, uint64_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(host);
  if (host == nullptr || bytes == 0 || address % page != 0) {
    throw InvalidArgument("host memory of " + std::to_string(bytes) +
                          " bytes at " + Hex(address) +
                          " cannot be registered; it must be whole pages");
  }
  Check(cudaHostRegister(host, bytes,
                         cudaHostRegisterPortable | cudaHostRegisterMapped),
        "cudaHostRegister");
  void* device = nullptr;
  const cudaError_t result = cudaHostGetDevicePointer(&device, host, 0);
  if (result != cudaSuccess) {
    cudaHostUnregister(host);
    throw CudaFailure(result, "cudaHostGetDevicePointer");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  registrations_.insert(host);
  return reinterpret_cast<uint64_t>(device);
}

void MaypoleGpu::UnregisterHost(void* host) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (registrations_.erase(host) == 0) {
      throw FailedPrecondition("host memory at " +
                               Hex(reinterpret_cast<uintptr_t>(host)) +
                               " is not registered here");
    }
  }
  Check(cudaHostUnregister(host), "cudaHostUnregister");
}
