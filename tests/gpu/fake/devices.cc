#include "tests/gpu/fake/devices.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string_view>

namespace maypole::cuda::fake {
namespace {

std::string UuidText(int gpu) {
  const CUuuid uuid = GpuUuid(gpu);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char byte[3];
    std::snprintf(byte, sizeof(byte), "%02x",
                  static_cast<unsigned char>(uuid.bytes[i]));
    text += byte;
  }
  return text;
}

// -1 if there is no such GPU.
int GpuNamed(std::string_view name, int count) {
  int number = -1;
  const auto end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data(), end, number);
  if (parsed.ec == std::errc() && parsed.ptr == end) {
    return number < count ? number : -1;
  }
  constexpr std::string_view kUuidPrefix = "GPU-";
  if (name.substr(0, kUuidPrefix.size()) != kUuidPrefix) return -1;
  for (int gpu = 0; gpu < count; ++gpu) {
    if (UuidText(gpu).substr(0, name.size()) == name) return gpu;
  }
  return -1;
}

}  // namespace

CUuuid GpuUuid(int gpu) {
  CUuuid uuid = {};
  std::memcpy(uuid.bytes, "fakegpu", 7);
  uuid.bytes[15] = static_cast<char>(gpu);
  return uuid;
}

std::vector<int> VisibleGpus(int count) {
  std::vector<int> gpus;
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  if (variable == nullptr) {
    gpus.resize(count);
    std::iota(gpus.begin(), gpus.end(), 0);
    return gpus;
  }
  std::string_view rest = variable;
  while (!rest.empty()) {
    const std::string_view name = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    const int gpu = GpuNamed(name, count);
    if (gpu < 0) break;
    gpus.push_back(gpu);
  }
  return gpus;
}

std::optional<int> GpuAttribute(const FakeConfig& config,
                                CUdevice_attribute attribute) {
  const bool vmm = config.vmm != FakeConfig::Vmm::kNone;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 8;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      return config.exclusive ? CU_COMPUTEMODE_EXCLUSIVE_PROCESS
                              : CU_COMPUTEMODE_DEFAULT;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return 0;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      return vmm;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      return 0;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      return config.writes;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
      return config.mps;
  }
  return {};
}

}  // namespace maypole::cuda::fake
