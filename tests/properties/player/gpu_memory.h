// GpuMemory: tensors of a rank on a CUDA device, with streams.
//
//   GpuMemory gpu;                             // device 0; aborts without one
//   auto block = gpu.Allocate(bytes);
//   gpu.Write(*block, host.data(), bytes, stream);     // enqueues
//   gpu.Read(*block, host.data(), bytes, stream);      // waits
//
// Thread contract: one thread.
#ifndef MAYPOLE_TESTS_PROPERTIES_PLAYER_GPU_MEMORY_H_
#define MAYPOLE_TESTS_PROPERTIES_PLAYER_GPU_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "common/gpu/gpu.h"

namespace maypole::properties {

class GpuMemory {
 public:
  // Frees the memory; the driver then waits for the work that uses it.
  struct Free {
    const cuda::Driver* driver;
    void operator()(std::byte* address) const;
  };
  // The address is the device's: not for this process to read.
  using Block = std::unique_ptr<std::byte, Free>;

  GpuMemory();

  Block Allocate(size_t bytes) const;
  void Write(const Block& to, const std::byte* from, size_t bytes,
             cuda::CUstream stream) const;
  void Read(const std::byte* from, std::byte* to, size_t bytes,
            cuda::CUstream stream) const;
  // The default stream, one that waits for it, one that does not.
  const std::vector<cuda::CUstream>& streams() const { return streams_; }

 private:
  const cuda::Driver* driver_ = nullptr;
  const cuda::Gpu* gpu_ = nullptr;
  std::vector<cuda::CUstream> streams_;
};

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_PLAYER_GPU_MEMORY_H_
