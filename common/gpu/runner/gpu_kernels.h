// GpuKernels: the kernels (common/gpu/kernels) on one GPU.
//
// Purpose: loads an image when one of its kernels is first requested, and keeps
// it.
//
//   GpuKernels& kernels = GpuKernels::Of(gpu);
//   StatusOr<cuda::CUfunction> f =
//       kernels.Reduce(DType::kInt32, Op::kSum);
//
// Thread contract: all functions may be called by any thread. The GPU must be
// the thread's current one (CurrentGpu).
//
// Invariants: one object per device and process, which lives until the process
// ends, and so do the images: unloading them could block forever.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_GPU_KERNELS_H_
#define MAYPOLE_COMMON_GPU_RUNNER_GPU_KERNELS_H_

#include <mutex>
#include <span>

#include "common/gpu/gpu.h"
#include "common/gpu/kernels/kernels.h"
#include "common/status_or.h"
#include "common/types.h"

namespace maypole {

// Loads the first image that the driver does not refuse; if it refuses all, the
// error is that of the last one.
StatusOr<cuda::CUmodule> LoadImage(const cuda::Gpu& gpu,
                                   std::span<const cuda::KernelImage> images);

class GpuKernels {
 public:
  static GpuKernels& Of(const cuda::Gpu& gpu);
  GpuKernels(const GpuKernels&) = delete;
  GpuKernels& operator=(const GpuKernels&) = delete;

  // cuda::kWriteWordKernel and kCopyKernel.
  StatusOr<cuda::CUfunction> WriteWord();
  StatusOr<cuda::CUfunction> Copy();
  StatusOr<cuda::CUfunction> Reduce(DType dtype, Op op);

 private:
  explicit GpuKernels(const cuda::Gpu& gpu) : gpu_(gpu) {}
  // `known`: null, or the function found before.
  StatusOr<cuda::CUfunction> Find(cuda::CUfunction& known,
                                  cuda::KernelGroup group, const char* name);

  const cuda::Gpu& gpu_;
  std::mutex mutex_;
  // Null: not loaded, or not looked up.
  cuda::CUmodule modules_[cuda::kKernelGroups] = {};
  cuda::CUfunction write_word_ = nullptr;
  cuda::CUfunction copy_ = nullptr;
  cuda::CUfunction reduce_[kDTypes][kOps] = {};
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_GPU_KERNELS_H_
