#include "worker/backend/gpu/plugin/device.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

using maypole::gpu::plugin::Check;
using maypole::gpu::plugin::Current;
using maypole::gpu::plugin::ExportableMemory;
using maypole::gpu::plugin::InfoOfDevice;
using maypole::gpu::plugin::Loaded;
using maypole::gpu::plugin::Unimplemented;

namespace maypole::gpu::plugin {
namespace {

bool Has(CUdevice_attribute attribute, int index) {
  int value = 0;
  Check(Loaded().driver.device_attribute(&value, attribute, index),
        "cuDeviceGetAttribute");
  return value != 0;
}

template <size_t N>
void CopyText(const char* from, char (&to)[N]) {
  const size_t length = std::min(strlen(from), N - 1);
  memcpy(to, from, length);
  to[length] = '\0';
}

// Writes the UUID as nvidia-smi does.
template <size_t N>
void WriteUuid(const cudaUUID_t& uuid, char (&to)[N]) {
  static_assert(N > 40);
  char* end = to + sprintf(to, "GPU");
  for (int i = 0; i < 16; ++i) {
    const bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    end += sprintf(end, dash ? "-%02x" : "%02x",
                   static_cast<unsigned char>(uuid.bytes[i]));
  }
}

}  // namespace

int DeviceCount() {
  int count = 0;
  Check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

MaypoleGpuDeviceInfo InfoOfDevice(int index) {
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  MaypoleGpuDeviceInfo info = {};
  WriteUuid(properties.uuid, info.uuid);
  CopyText(properties.name, info.name);
  Check(cudaDeviceGetPCIBusId(info.bus_id, sizeof(info.bus_id), index),
        "cudaDeviceGetPCIBusId");
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.copy_engines = properties.asyncEngineCount;
  info.total_bytes = properties.totalGlobalMem;
  info.exports_memory =
      Has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, index) &&
      Has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
          index);
  info.stream_flags =
      Has(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, index);
  return info;
}

PrimaryContext::PrimaryContext(const DriverApi& driver, int index)
    : driver_(driver), device_(index) {
  // The runtime's own reference lasts until the process ends, so that the
  // device's primary context never changes under the runtime.
  Check(cudaInitDevice(index, 0, 0), "cudaInitDevice");
  Check(driver_.primary_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

PrimaryContext::~PrimaryContext() { driver_.primary_release(device_); }

}  // namespace maypole::gpu::plugin

MaypoleGpu::MaypoleGpu(int index)
    : driver_(Loaded().driver), primary_(driver_, index) {
  const MaypoleGpuDeviceInfo info = InfoOfDevice(index);
  where_ = ", on GPU " + std::to_string(index) + " (" + info.name + ")";
  multiprocessors_ = info.multiprocessors;
  exports_memory_ = info.exports_memory != 0;
  stream_flags_ = info.stream_flags != 0;
  const Current current(*this);
  LoadKernels();
  if (!exports_memory_) return;
  const CUmemAllocationProp wanted = ExportableMemory(primary_.device());
  Check(driver_.mem_granularity(&granularity_, &wanted,
                                CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  if (granularity_ == 0) {
    throw Unimplemented("cuMemGetAllocationGranularity returned 0");
  }
  LoadDriversKernels();
}

MaypoleGpu::~MaypoleGpu() {
  for (auto& [address, allocation] : allocations_) allocation.Abandon();
}
