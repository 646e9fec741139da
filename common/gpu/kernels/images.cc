// The images that cuda_images (tools/build_defs/cuda.bzl) has put into the
// program. The names are those of the .cu files.
#include "common/gpu/kernels/kernels.h"

#define MAYPOLE_IMAGES(X) \
  X(copy)                 \
  X(reduce_floats)        \
  X(reduce_halves)        \
  X(reduce_integers)

extern "C" {
#define MAYPOLE_DECLARE(name)                       \
  extern const std::byte maypole_code_##name[];     \
  extern const std::byte maypole_code_end_##name[]; \
  extern const std::byte maypole_ptx_##name[];      \
  extern const std::byte maypole_ptx_end_##name[];
MAYPOLE_IMAGES(MAYPOLE_DECLARE)
}

namespace maypole::cuda {

std::span<const KernelImage> KernelImages(KernelGroup group) {
#define MAYPOLE_IMAGE(name)                                   \
  {KernelImage(maypole_code_##name, maypole_code_end_##name), \
   KernelImage(maypole_ptx_##name, maypole_ptx_end_##name)},
  // In the order of KernelGroup.
  static const KernelImage kImages[kKernelGroups][2] = {
      MAYPOLE_IMAGES(MAYPOLE_IMAGE)};
  return kImages[static_cast<int>(group)];
}

}  // namespace maypole::cuda
