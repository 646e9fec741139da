#include "worker/gpu/gpu_kernels.h"

#include <map>
#include <memory>

#include "absl/status/status.h"
#include "common/absl_status.h"

namespace maypole::worker {

using cuda::CUfunction;
using cuda::CUmodule;

absl::StatusOr<CUmodule> LoadImage(const cuda::Gpu& gpu,
                                   std::span<const cuda::KernelImage> images) {
  absl::Status s = absl::UnavailableError("this build has no GPU kernels");
  for (const cuda::KernelImage& image : images) {
    CUmodule module = nullptr;
    s = ToAbsl(gpu.Check(gpu.driver().cuModuleLoadData(&module, image.data()),
                         "cuModuleLoadData"));
    if (s.ok()) return module;
  }
  return s;
}

GpuKernels& GpuKernels::Of(const cuda::Gpu& gpu) {
  static std::mutex mutex;
  // Never destroyed: a thread may use it while the process ends.
  static auto& all =
      *new std::map<const cuda::Gpu*, std::unique_ptr<GpuKernels>>;
  std::lock_guard lock(mutex);
  std::unique_ptr<GpuKernels>& entry = all[&gpu];
  if (entry == nullptr) entry.reset(new GpuKernels(gpu));
  return *entry;
}

absl::StatusOr<CUfunction> GpuKernels::Find(cuda::KernelGroup group,
                                            const char* name) {
  CUmodule& module = modules_[static_cast<int>(group)];
  if (module == nullptr) {
    absl::StatusOr<CUmodule> loaded =
        LoadImage(gpu_, cuda::KernelImages(group));
    if (!loaded.ok()) return loaded.status();
    module = *loaded;
  }
  CUfunction function = nullptr;
  const cuda::CUresult result =
      gpu_.driver().cuModuleGetFunction(&function, module, name);
  if (result == cuda::CUDA_ERROR_NOT_FOUND) {
    return absl::NotFoundError(
        "this build has no GPU kernels (it was built without --config=cuda)");
  }
  if (result != cuda::CUDA_SUCCESS) {
    return ToAbsl(gpu_.Check(result, "cuModuleGetFunction"));
  }
  return function;
}

absl::StatusOr<CUfunction> GpuKernels::WriteWord() {
  std::lock_guard lock(mutex_);
  if (write_word_ != nullptr) return write_word_;
  absl::StatusOr<CUfunction> found =
      Find(cuda::KernelGroup::kCopy, cuda::kWriteWordKernel);
  if (found.ok()) write_word_ = *found;
  return found;
}

absl::StatusOr<CUfunction> GpuKernels::Reduce(DType dtype, Op op) {
  std::lock_guard lock(mutex_);
  CUfunction& known = reduce_[static_cast<int>(dtype)][static_cast<int>(op)];
  if (known != nullptr) return known;
  absl::StatusOr<CUfunction> found =
      Find(cuda::GroupOf(dtype), cuda::ReduceKernel(dtype, op).c_str());
  if (found.ok()) known = *found;
  return found;
}

}  // namespace maypole::worker
