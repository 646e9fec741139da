#include "common/gpu/runner/gpu_kernels.h"

#include <map>
#include <memory>

namespace maypole {

using cuda::CUfunction;
using cuda::CUmodule;

StatusOr<CUmodule> LoadImage(const cuda::Gpu& gpu,
                             std::span<const cuda::KernelImage> images) {
  Status s(Code::kUnavailable, "this build has no GPU kernels");
  for (const cuda::KernelImage& image : images) {
    CUmodule module = nullptr;
    s = gpu.Check(gpu.driver().cuModuleLoadData(&module, image.data()),
                  "cuModuleLoadData");
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

StatusOr<CUfunction> GpuKernels::Find(CUfunction& known,
                                      cuda::KernelGroup group,
                                      const char* name) {
  std::lock_guard lock(mutex_);
  if (known != nullptr) return known;
  CUmodule& module = modules_[static_cast<int>(group)];
  if (module == nullptr) {
    StatusOr<CUmodule> loaded = LoadImage(gpu_, cuda::KernelImages(group));
    if (!loaded.ok()) return loaded.status();
    module = *loaded;
  }
  CUfunction function = nullptr;
  const cuda::CUresult result =
      gpu_.driver().cuModuleGetFunction(&function, module, name);
  if (result == cuda::CUDA_ERROR_NOT_FOUND) {
    return Status(
        Code::kNotFound,
        "this build has no GPU kernels (it was built without CUDA's nvcc)");
  }
  if (result != cuda::CUDA_SUCCESS) {
    return gpu_.Check(result, "cuModuleGetFunction");
  }
  known = function;
  return function;
}

StatusOr<CUfunction> GpuKernels::WriteWord() {
  return Find(write_word_, cuda::KernelGroup::kCopy, cuda::kWriteWordKernel);
}

StatusOr<CUfunction> GpuKernels::Copy() {
  return Find(copy_, cuda::KernelGroup::kCopy, cuda::kCopyKernel);
}

StatusOr<CUfunction> GpuKernels::Reduce(DType dtype, Op op) {
  return Find(reduce_[static_cast<int>(dtype)][static_cast<int>(op)],
              cuda::GroupOf(dtype), cuda::ReduceKernel(dtype, op).c_str());
}

}  // namespace maypole
