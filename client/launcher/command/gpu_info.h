// What maypolerun --check-build prints about the GPUs of this machine.
//
// Purpose: FindGpuFacts() asks the driver, the environment, the dynamic linker,
// and the python3 on PATH; DescribeGpus() writes the answers, and where
// operations on CUDA tensors can therefore run (client/gpu/gpu_site.h).
//
// Thread contract: functions. FindGpuFacts() blocks for up to 10 s, loads the
// driver and NCCL into this process, and makes no CUDA context.
#ifndef MAYPOLE_CLIENT_LAUNCHER_COMMAND_GPU_INFO_H_
#define MAYPOLE_CLIENT_LAUNCHER_COMMAND_GPU_INFO_H_

#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace maypole::launcher {

struct NcclFacts {
  Status status;        // why it cannot be used
  std::string path;     // of the library; if not ok: where it was expected
  std::string version;  // "2.28.9"
};

struct GpuFacts {
  Status driver;
  std::string cuda_version;       // supported by the driver: "12.8"
  std::string driver_version;     // "570.86.10"; empty: unknown
  std::vector<std::string> gpus;  // "NVIDIA H200, GPU-..."
  // The architectures for which this build has kernels (common/gpu/kernels):
  // code and PTX. Empty: it has none.
  std::vector<int> code, ptx;
  // MAYPOLE_NCCL_LIBRARY, and the NCCL that it names.
  std::optional<std::string> library;
  NcclFacts named;
  NcclFacts linkers;  // libnccl.so.2 of the dynamic linker
  NcclFacts pythons;  // of python3's package nvidia-nccl
};

// Names the NCCL that executors of this user's agent use (docs/gpu.md); empty:
// there is none.
std::string UsableNccl(const GpuFacts& facts);

GpuFacts FindGpuFacts();
std::string DescribeGpus(const GpuFacts& facts);

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_COMMAND_GPU_INFO_H_
