#include "common/gpu/kernels/built.h"

namespace maypole::cuda {

// The lists are those of tools/build_defs/cuda.bzl.
#ifdef MAYPOLE_CUDA_ARCHITECTURES

std::span<const int> CodeArchitectures() {
  static constexpr int kArchitectures[] = {MAYPOLE_CUDA_ARCHITECTURES};
  return kArchitectures;
}

std::span<const int> PtxArchitectures() {
  static constexpr int kArchitectures[] = {MAYPOLE_PTX_ARCHITECTURES};
  return kArchitectures;
}

#else

std::span<const int> CodeArchitectures() { return {}; }
std::span<const int> PtxArchitectures() { return {}; }

#endif

}  // namespace maypole::cuda
