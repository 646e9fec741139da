// A GPU's UUID as text.
//
// Thread contract: a pure function.
#ifndef MAYPOLE_COMMON_GPU_UUID_H_
#define MAYPOLE_COMMON_GPU_UUID_H_

#include <string>

#include "common/gpu/cuda_types.h"

namespace maypole::cuda {

// "GPU-" and 8-4-4-4-12 hexadecimal digits, as nvidia-smi writes it; for a part
// of a GPU (MIG), nvidia-smi writes "MIG-" instead.
std::string UuidText(const CUuuid& uuid);

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_UUID_H_
