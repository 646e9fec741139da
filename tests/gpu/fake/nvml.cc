// NVML without a GPU: libnvidia-ml.so.1, as GpuLoads calls it. It knows every
// GPU whose UUID does not begin with 00. A UUID that begins with
//   f0   is that of a MIG instance, which has no utilization, and which NVML
//        finds by the prefix MIG only
//   ff   makes NVML hang: a call for it does not return
// All GPUs have the same memory and load.
#include <unistd.h>

#include <cstring>
#include <string>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kNotFound = 6;

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};

int mig, whole, stuck;  // their addresses are the devices

}  // namespace

extern "C" {

int nvmlInit_v2() { return kSuccess; }

int nvmlDeviceGetHandleByUUID(const char* text, void** device) {
  const std::string uuid(text);
  const std::string prefix = uuid.substr(0, 4), first = uuid.substr(4, 2);
  const bool is_mig = first == "f0";
  if (first == "00" || is_mig != (prefix == "MIG-")) return kNotFound;
  *device = is_mig ? &mig : first == "ff" ? &stuck : &whole;
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  while (device == &stuck) pause();
  *memory = {80'000, 50'000, 30'000};
  return kSuccess;
}

int nvmlDeviceGetUtilizationRates(void* device, Utilization* utilization) {
  if (device == &mig) return kNotSupported;
  *utilization = {73, 11};
  return kSuccess;
}

}  // extern "C"
