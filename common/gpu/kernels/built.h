// Which compiled kernels this build has, known without linking them.
//
// Thread contract: constants.
#ifndef MAYPOLE_COMMON_GPU_KERNELS_BUILT_H_
#define MAYPOLE_COMMON_GPU_KERNELS_BUILT_H_

#include <span>

namespace maypole::cuda {

// The architectures (86: compute capability 8.6) for which there is code, which
// also runs on later ones with the same first digit. Empty: this build has no
// kernels, because it was built without CUDA's nvcc.
std::span<const int> CodeArchitectures();

// The architectures for which there is PTX, newest first. The driver compiles
// it for itself and for all later ones. Empty if CodeArchitectures() is.
std::span<const int> PtxArchitectures();

inline bool KernelsAreBuilt() { return !CodeArchitectures().empty(); }

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_KERNELS_BUILT_H_
