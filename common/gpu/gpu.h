// Gpu: one GPU as this process sees it, with its primary context.
//
// Purpose: the primary context is the one that CUDA's runtime, and so every
// framework, uses; Maypole works in it and makes no context of its own. GPUs
// are named by UUID between processes (an ordinal depends on
// CUDA_VISIBLE_DEVICES, which differs by rank); a part of a GPU (MIG) has a
// UUID of its own.
//
//   const Gpu* device = nullptr;
//   Status s = Gpu::OfAddress(*driver, address, &device);
//   const CurrentGpu current(*device);       // around calls of the driver
//   s = device->Check(driver->cuStreamQuery(stream), "cuStreamQuery");
//
// Thread contract: Gpu is constant after it was made and may be used by any
// thread. A CurrentGpu belongs to the thread that made it.
#ifndef MAYPOLE_COMMON_GPU_GPU_H_
#define MAYPOLE_COMMON_GPU_GPU_H_

#include <memory>
#include <string>
#include <string_view>

#include "common/gpu/driver.h"
#include "common/gpu/uuid.h"
#include "common/status.h"

namespace maypole::cuda {

class Gpu {
 public:
  // The device with this ordinal; one object per device and process, which
  // lives until the process ends: releasing a context could block forever.
  static Status Open(const Driver& driver, int ordinal, const Gpu** out);
  // The device whose memory the address lies in. kInvalidArgument if it is not
  // an address of device (or managed) memory.
  static Status OfAddress(const Driver& driver, CUdeviceptr address,
                          const Gpu** out);

  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  CUdevice number() const { return number_; }
  CUcontext context() const { return context_; }
  const std::string& uuid() const { return uuid_; }  // see UuidText()
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  // Streams can write 64-bit words (cuStreamWriteValue64).
  bool writes_values() const { return writes_values_; }
  // Processes use it through an MPS server, so that their kernels run side by
  // side. Otherwise it runs one process at a time.
  bool under_mps() const { return under_mps_; }

  // Like CudaStatus(), and says on which device, and how much of its memory is
  // free if there is not enough.
  Status Check(CUresult result, std::string_view call) const;

 private:
  Gpu(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status Open();
  // False also if the driver does not know the attribute.
  bool Has(CUdevice_attribute attribute) const;
  // ", 12 of 81559 MiB free"; empty if there is no context yet.
  std::string FreeText() const;

  const Driver& driver_;
  const int ordinal_;
  CUdevice number_ = 0;
  CUcontext context_ = nullptr;
  std::string uuid_;
  std::string name_;
  bool writes_values_ = false;
  bool under_mps_ = false;
};

// While it exists, the device's context is the thread's current one, and calls
// of this thread do not break a graph that another thread captures
// (cuThreadExchangeStreamCaptureMode with CU_STREAM_CAPTURE_MODE_RELAXED).
class CurrentGpu {
 public:
  explicit CurrentGpu(const Gpu& device);
  ~CurrentGpu();
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

  // The result of cuCtxPushCurrent(); if it failed, the other calls would too.
  Status status() const;

 private:
  const Gpu& device_;
  CUresult pushed_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_GPU_H_
