// The driver's functions for devices and contexts.
#include <cstdio>

#include "tests/gpu/fake/calls/entry_points.h"
#include "tests/gpu/fake/devices.h"
#include "tests/gpu/fake/process.h"

namespace maypole::cuda::fake {
namespace {

struct ErrorText {
  CUresult error;
  const char* name;
};

constexpr ErrorText kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED"},
    {CUDA_ERROR_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
     "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
     "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
     "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
};

CUresult FindError(CUresult error, const char** name) {
  *name = nullptr;
  for (const ErrorText& text : kErrors) {
    if (text.error == error) *name = text.name;
  }
  return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// Calls body(device's context) if there is such a device.
template <typename Body>
CUresult WithDevice(const char* name, CUdevice device, Body body) {
  return InProcess(name, [&](FakeProcess& process, FakeProcess::Held& held) {
    FakeContext* const context = process.Device(device);
    if (context == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    return body(process, *context, held);
  });
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return FakeProcess::Get().Initialise();
}

CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = FakeProcess::Get().config().driver;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  return FindError(error, name);
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  return FindError(error, text);
}

CUresult cuDeviceGetCount(int* count) {
  return InProcess("cuDeviceGetCount", [&](FakeProcess& process, auto&) {
    *count = static_cast<int>(process.device_count());
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return WithDevice("cuDeviceGet", ordinal, [&](auto&, auto&, auto&) {
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  return WithDevice("cuDeviceGetName", device, [&](auto&, auto&, auto&) {
    if (name == nullptr || bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, static_cast<size_t>(bytes), "%s", kGpuName);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return WithDevice("cuDeviceGetUuid", device,
                    [&](auto&, FakeContext& context, auto&) {
                      *uuid = GpuUuid(context.gpu);
                      return CUDA_SUCCESS;
                    });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                              CUdevice device) {
  return WithDevice(
      "cuDeviceGetAttribute", device, [&](FakeProcess& process, auto&, auto&) {
        const auto known = GpuAttribute(process.config(), attribute);
        if (!known) return CUDA_ERROR_INVALID_VALUE;
        *value = *known;
        return CUDA_SUCCESS;
      });
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return WithDevice("cuDeviceCanAccessPeer", device,
                    [&](FakeProcess& process, auto&, auto&) {
                      if (process.Device(peer) == nullptr) {
                        return CUDA_ERROR_INVALID_DEVICE;
                      }
                      *can = device != peer;
                      return CUDA_SUCCESS;
                    });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
  return WithDevice("cuDevicePrimaryCtxRetain", device,
                    [&](FakeProcess& process, FakeContext& context, auto&) {
                      if (context.retained == 0 && process.config().exclusive &&
                          !process.state().Own(context.gpu)) {
                        return CUDA_ERROR_DEVICE_UNAVAILABLE;
                      }
                      ++context.retained;
                      *handle = context.handle();
                      return CUDA_SUCCESS;
                    });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return WithDevice(
      "cuDevicePrimaryCtxRelease", device,
      [&](FakeProcess& process, FakeContext& context, FakeProcess::Held& held) {
        if (context.retained == 1) process.WaitForAll(held);
        if (context.retained == 0) {
          return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (--context.retained == 0) process.Reset(context);
        return CUDA_SUCCESS;
      });
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return InProcess("cuCtxPushCurrent", [&](FakeProcess& process, auto&) {
    FakeContext* const context = process.Context(handle);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    FakeThread::Get().contexts.push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  return InProcess("cuCtxPopCurrent", [&](auto&, auto&) {
    auto& contexts = FakeThread::Get().contexts;
    if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (handle != nullptr) *handle = contexts.back()->handle();
    contexts.pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  return InProcess("cuCtxSetCurrent", [&](FakeProcess& process, auto&) {
    FakeContext* const context = process.Context(handle);
    if (context == nullptr && handle != nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    auto& contexts = FakeThread::Get().contexts;
    if (!contexts.empty()) contexts.pop_back();
    if (context != nullptr) contexts.push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* handle) {
  return InProcess("cuCtxGetCurrent", [&](auto&, auto&) {
    auto& contexts = FakeThread::Get().contexts;
    *handle = contexts.empty() ? nullptr : contexts.back()->handle();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize() {
  return InContext("cuCtxSynchronize", InCapture::kUnsafe, [&](Call& call) {
    return call.process.WaitForAll(call.held);
  });
}

}  // extern "C"

const std::vector<EntryPoint>& DeviceEntries() {
  static const auto& entries = *new std::vector<EntryPoint>{
      Entry("cuInit", 2000, &Driver::cuInit, cuInit),
      Entry("cuDriverGetVersion", 2020, &Driver::cuDriverGetVersion,
            cuDriverGetVersion),
      Entry("cuGetErrorName", 6000, &Driver::cuGetErrorName, cuGetErrorName),
      Entry("cuGetErrorString", 6000, &Driver::cuGetErrorString,
            cuGetErrorString),
      Entry("cuDeviceGetCount", 2000, &Driver::cuDeviceGetCount,
            cuDeviceGetCount),
      Entry("cuDeviceGet", 2000, &Driver::cuDeviceGet, cuDeviceGet),
      Entry("cuDeviceGetName", 2000, &Driver::cuDeviceGetName, cuDeviceGetName),
      Entry("cuDeviceGetUuid", 9020, &Driver::cuDeviceGetUuid,
            cuDeviceGetUuid_v2),
      Entry("cuDeviceGetAttribute", 2000, &Driver::cuDeviceGetAttribute,
            cuDeviceGetAttribute),
      Entry("cuDeviceCanAccessPeer", 4000, &Driver::cuDeviceCanAccessPeer,
            cuDeviceCanAccessPeer),
      Entry("cuDevicePrimaryCtxRetain", 7000, &Driver::cuDevicePrimaryCtxRetain,
            cuDevicePrimaryCtxRetain),
      Entry("cuDevicePrimaryCtxRelease", 7000,
            &Driver::cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2),
      Entry("cuCtxPushCurrent", 4000, &Driver::cuCtxPushCurrent,
            cuCtxPushCurrent_v2),
      Entry("cuCtxPopCurrent", 4000, &Driver::cuCtxPopCurrent,
            cuCtxPopCurrent_v2),
  };
  return entries;
}

}  // namespace maypole::cuda::fake
