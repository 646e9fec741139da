// The fake GPUs of a machine, and which of them a process sees.
//
// Purpose: the same in every process, so that processes agree on UUIDs.
//
//   GpuUuid(1)           // GPU-66616b65-6770-7500-0000-000000000001
//   VisibleGpus(2)       // {1} if CUDA_VISIBLE_DEVICES=1
//   GpuAttribute(config, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)   // 9
//
// Thread contract: pure functions, besides the environment.
#ifndef MAYPOLE_TESTS_GPU_FAKE_DEVICES_H_
#define MAYPOLE_TESTS_GPU_FAKE_DEVICES_H_

#include <optional>
#include <string>
#include <vector>

#include "common/gpu/cuda_types.h"
#include "tests/gpu/fake/config.h"

namespace maypole::cuda::fake {

inline constexpr char kGpuName[] = "Fake GPU";

CUuuid GpuUuid(int gpu);

// The GPUs that $CUDA_VISIBLE_DEVICES names, by number or by "GPU-UUID" or the
// beginning of one; as CUDA does, only those before the first that does not
// exist. All, if the variable is not set.
std::vector<int> VisibleGpus(int count);

// Nothing if the fake does not know the attribute.
std::optional<int> GpuAttribute(const FakeConfig& config,
                                CUdevice_attribute attribute);

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_DEVICES_H_
