#include "common/gpu/gpu.h"

#include <iterator>
#include <map>
#include <mutex>

namespace maypole::cuda {
namespace {

constexpr int kNameBytes = 256;

}  // namespace

Status Gpu::Check(CUresult result, std::string_view call) const {
  if (result == CUDA_SUCCESS) return Status();
  const Status s = CudaStatus(driver_, result, call);
  std::string where = ", on " + uuid_;
  if (!name_.empty()) where += " (" + name_ + ")";
  if (result == CUDA_ERROR_OUT_OF_MEMORY) where += FreeText();
  return Status(s.code(), s.message() + where);
}

std::string Gpu::FreeText() const {
  if (context_ == nullptr) return {};
  const CurrentGpu current(*this);
  size_t free = 0;
  size_t total = 0;
  if (!current.status().ok() ||
      driver_.cuMemGetInfo(&free, &total) != CUDA_SUCCESS) {
    return {};
  }
  return ", " + std::to_string(free >> 20) + " of " +
         std::to_string(total >> 20) + " MiB free";
}

bool Gpu::Has(CUdevice_attribute attribute) const {
  int value = 0;
  return driver_.cuDeviceGetAttribute(&value, attribute, number_) ==
             CUDA_SUCCESS &&
         value != 0;
}

Status Gpu::Open() {
  uuid_ = "GPU " + std::to_string(ordinal_);  // until it is known
  if (Status s = Check(driver_.cuDeviceGet(&number_, ordinal_), "cuDeviceGet");
      !s.ok()) {
    return s;
  }
  CUuuid uuid = {};
  if (Status s =
          Check(driver_.cuDeviceGetUuid(&uuid, number_), "cuDeviceGetUuid");
      !s.ok()) {
    return s;
  }
  uuid_ = UuidText(uuid);
  char name[kNameBytes] = {};
  if (driver_.cuDeviceGetName(name, kNameBytes, number_) == CUDA_SUCCESS) {
    name_ = name;
  }
  writes_values_ = Has(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
  under_mps_ = Has(CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
  const CUresult result = driver_.cuDevicePrimaryCtxRetain(&context_, number_);
  if (result == CUDA_ERROR_DEVICE_UNAVAILABLE) {
    return Status(Code::kUnavailable,
                  Check(result, "cuDevicePrimaryCtxRetain").message() +
                      ": another process uses the GPU, and its compute mode "
                      "(nvidia-smi -c) allows one process only, or none");
  }
  return Check(result, "cuDevicePrimaryCtxRetain");
}

Status Gpu::Open(const Driver& driver, int ordinal, const Gpu** out) {
  static std::mutex mutex;
  // Never destroyed: other threads may use devices while the process ends.
  static auto& devices = *new std::map<int, std::unique_ptr<Gpu>>;
  std::lock_guard lock(mutex);
  std::unique_ptr<Gpu>& entry = devices[ordinal];
  if (entry == nullptr) {
    std::unique_ptr<Gpu> device(new Gpu(driver, ordinal));
    if (Status s = device->Open(); !s.ok()) return s;
    entry = std::move(device);
  }
  *out = entry.get();
  return Status();
}

Status Gpu::OfAddress(const Driver& driver, CUdeviceptr address,
                      const Gpu** out) {
  // The driver writes 4 bytes into each.
  unsigned type = 0;
  int ordinal = -1;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &ordinal};
  const CUresult result = driver.cuPointerGetAttributes(
      std::size(attributes), attributes, values, address);
  if (result != CUDA_SUCCESS) {
    return CudaStatus(driver, result, "cuPointerGetAttributes");
  }
  if (type != CU_MEMORYTYPE_DEVICE || ordinal < 0) {
    return Status(Code::kInvalidArgument,
                  "the address is not one of CUDA device memory in this "
                  "process");
  }
  return Open(driver, ordinal, out);
}

CurrentGpu::CurrentGpu(const Gpu& device)
    : device_(device),
      pushed_(device.driver().cuCtxPushCurrent(device.context())) {
  device_.driver().cuThreadExchangeStreamCaptureMode(&mode_);
}

CurrentGpu::~CurrentGpu() {
  device_.driver().cuThreadExchangeStreamCaptureMode(&mode_);
  if (pushed_ != CUDA_SUCCESS) return;
  CUcontext popped = nullptr;
  device_.driver().cuCtxPopCurrent(&popped);
}

Status CurrentGpu::status() const {
  return device_.Check(pushed_, "cuCtxPushCurrent");
}

}  // namespace maypole::cuda
