// Device: the first GPU, for programs that test or measure what a driver does.
//
// Purpose: the calls that such programs have in common. An unexpected result is
// an exception, so that it ends one test and not the program; for results that
// it examines, a test calls cuda()'s functions.
//
//   const Driver* driver = nullptr;
//   if (Status s = LoadDriver(&driver); !s.ok()) ...
//   Device device(*driver);
//   const CUdeviceptr memory = device.Alloc(bytes);
//   device.Upload(memory, data);             // done when it returns
//   device.Check(device.cuda().cuStreamQuery(stream), "cuStreamQuery");
//
// Thread contract: used by the thread that has made it; during its life the
// GPU's primary context is current for this thread.
//
// Invariants: only functions of Driver are called. The stream does not block.
#ifndef MAYPOLE_TESTS_GPU_TESTING_DEVICE_H_
#define MAYPOLE_TESTS_GPU_TESTING_DEVICE_H_

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/gpu/gpu.h"
#include "common/gpu/kernels/kernels.h"

namespace maypole::cuda {

class CudaError : public std::runtime_error {
 public:
  CudaError(CUresult result, const std::string& text)
      : std::runtime_error(text), result_(result) {}
  CUresult result() const { return result_; }

 private:
  const CUresult result_;
};

class Device {
 public:
  explicit Device(const Driver& driver);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& cuda() const { return cuda_; }
  const Gpu& gpu() const { return *gpu_; }
  CUstream stream() const { return stream_; }
  // 0 if the driver does not know the attribute.
  int Attribute(CUdevice_attribute attribute) const;
  size_t FreeBytes() const;

  // Throws a CudaError if the result is not CUDA_SUCCESS.
  void Check(CUresult result, const char* call) const;

  CUdeviceptr Alloc(size_t bytes) const;
  void Free(CUdeviceptr memory) const;
  // These return when the copy is done.
  void Upload(CUdeviceptr to, std::span<const std::byte> data) const;
  std::vector<std::byte> Download(CUdeviceptr from, size_t bytes) const;
  void Fill(CUdeviceptr memory, size_t bytes, unsigned char value) const;
  void Synchronize() const { Synchronize(stream_); }
  void Synchronize(CUstream stream) const;

  CUstream NewStream(unsigned flags = CU_STREAM_NON_BLOCKING) const;
  CUevent NewEvent(unsigned flags = CU_EVENT_DISABLE_TIMING) const;

  // Null if the program was built without kernels (nvcc).
  CUfunction Kernel(KernelGroup group, const std::string& name);
  // These need their kernel. `blocks`: 0 for as many as the device runs at
  // once.
  void Reduce(DType dtype, Op op, ReduceArguments arguments, unsigned blocks,
              CUstream stream);
  void CopyPieces(CopyArguments arguments, CUstream stream);
  void WriteWord(CUdeviceptr address, uint64_t value, CUstream stream);

 private:
  void Launch(CUfunction function, unsigned blocks, unsigned threads,
              void** arguments, CUstream stream) const;
  unsigned AllBlocks() const;

  const Driver& cuda_;
  const Gpu* gpu_ = nullptr;
  std::optional<CurrentGpu> current_;
  CUstream stream_ = nullptr;
  std::map<std::string, CUfunction> kernels_;
};

inline CUdeviceptr AddressOf(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

}  // namespace maypole::cuda

#endif  // MAYPOLE_TESTS_GPU_TESTING_DEVICE_H_
