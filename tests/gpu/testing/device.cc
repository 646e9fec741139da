#include "tests/gpu/testing/device.h"

namespace maypole::cuda {
namespace {

// Of kBlockThreads threads: a multiprocessor has room for 2,048.
constexpr unsigned kBlocksPerMultiprocessor = 8;

void Check(const Status& s) {
  if (!s.ok()) throw CudaError(CUDA_ERROR_UNKNOWN, s.message());
}

}  // namespace

Device::Device(const Driver& driver) : cuda_(driver) {
  cuda::Check(Gpu::Open(driver, 0, &gpu_));
  current_.emplace(*gpu_);
  cuda::Check(current_->status());
  stream_ = NewStream();
}

Device::~Device() { cuda_.cuStreamDestroy(stream_); }

int Device::Attribute(CUdevice_attribute attribute) const {
  int value = 0;
  const CUresult result =
      cuda_.cuDeviceGetAttribute(&value, attribute, gpu_->number());
  return result == CUDA_SUCCESS ? value : 0;
}

size_t Device::FreeBytes() const {
  size_t free = 0, total = 0;
  Check(cuda_.cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return free;
}

void Device::Check(CUresult result, const char* call) const {
  if (result == CUDA_SUCCESS) return;
  throw CudaError(result, CudaStatus(cuda_, result, call).message());
}

CUdeviceptr Device::Alloc(size_t bytes) const {
  CUdeviceptr memory = 0;
  Check(cuda_.cuMemAlloc(&memory, bytes), "cuMemAlloc");
  return memory;
}

void Device::Free(CUdeviceptr memory) const {
  Check(cuda_.cuMemFree(memory), "cuMemFree");
}

void Device::Upload(CUdeviceptr to, std::span<const std::byte> data) const {
  Check(cuda_.cuMemcpyAsync(to, AddressOf(data.data()), data.size(), stream_),
        "cuMemcpyAsync");
  Synchronize();
}

std::vector<std::byte> Device::Download(CUdeviceptr from, size_t bytes) const {
  std::vector<std::byte> data(bytes);
  Check(cuda_.cuMemcpyAsync(AddressOf(data.data()), from, bytes, stream_),
        "cuMemcpyAsync");
  Synchronize();
  return data;
}

void Device::Fill(CUdeviceptr memory, size_t bytes, unsigned char value) const {
  Upload(memory, std::vector<std::byte>(bytes, std::byte{value}));
}

void Device::Synchronize(CUstream stream) const {
  Check(cuda_.cuStreamSynchronize(stream), "cuStreamSynchronize");
}

CUstream Device::NewStream(unsigned flags) const {
  CUstream stream = nullptr;
  Check(cuda_.cuStreamCreate(&stream, flags), "cuStreamCreate");
  return stream;
}

CUevent Device::NewEvent(unsigned flags) const {
  CUevent event = nullptr;
  Check(cuda_.cuEventCreate(&event, flags), "cuEventCreate");
  return event;
}

CUfunction Device::Kernel(KernelGroup group, const std::string& name) {
  if (const auto it = kernels_.find(name); it != kernels_.end()) {
    return it->second;
  }
  CUmodule module = nullptr;
  CUresult loaded = CUDA_ERROR_INVALID_IMAGE;
  for (const KernelImage& image : KernelImages(group)) {
    loaded = cuda_.cuModuleLoadData(&module, image.data());
    if (loaded == CUDA_SUCCESS) break;
  }
  Check(loaded, "cuModuleLoadData");
  CUfunction& function = kernels_[name];
  const CUresult found =
      cuda_.cuModuleGetFunction(&function, module, name.c_str());
  if (found != CUDA_ERROR_NOT_FOUND) Check(found, "cuModuleGetFunction");
  return function;
}

void Device::Launch(CUfunction function, unsigned blocks, unsigned threads,
                    void** arguments, CUstream stream) const {
  Check(cuda_.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream,
                             arguments, nullptr),
        "cuLaunchKernel");
}

unsigned Device::AllBlocks() const {
  return kBlocksPerMultiprocessor *
         static_cast<unsigned>(
             Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
}

void Device::Reduce(DType dtype, Op op, ReduceArguments arguments,
                    unsigned blocks, CUstream stream) {
  const unsigned most = blocks == 0 ? AllBlocks() : blocks;
  void* pointers[] = {&arguments};
  Launch(Kernel(GroupOf(dtype), ReduceKernel(dtype, op)),
         BlocksFor(arguments, most), kBlockThreads, pointers, stream);
}

void Device::CopyPieces(CopyArguments arguments, CUstream stream) {
  void* pointers[] = {&arguments};
  Launch(Kernel(KernelGroup::kCopy, kCopyKernel),
         BlocksFor(arguments, AllBlocks()), kBlockThreads, pointers, stream);
}

void Device::WriteWord(CUdeviceptr address, uint64_t value, CUstream stream) {
  void* pointers[] = {&address, &value};
  Launch(Kernel(KernelGroup::kCopy, kWriteWordKernel), 1, 1, pointers, stream);
}

}  // namespace maypole::cuda
