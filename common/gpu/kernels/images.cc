// The images that cuda_images (tools/build_defs/cuda.bzl) embeds in the
// program. The names are those of the .cu files.
#include "common/gpu/kernels/kernels.h"

#define MAYPOLE_IMAGES(X) \
  X(copy)                 \
  X(reduce_floats)        \
  X(reduce_halves)        \
  X(reduce_integers)

extern "C" {
#define MAYPOLE_DECLARE_IMAGE(name)        \
  extern const std::byte maypole_##name[]; \
  extern const std::byte maypole_end_##name[];
#define MAYPOLE_DECLARE(name)          \
  MAYPOLE_DECLARE_IMAGE(code_##name)   \
  MAYPOLE_DECLARE_IMAGE(ptx_80_##name) \
  MAYPOLE_DECLARE_IMAGE(ptx_70_##name)
MAYPOLE_IMAGES(MAYPOLE_DECLARE)
}

namespace maypole::cuda {

std::span<const KernelImage> KernelImages(KernelGroup group) {
#define MAYPOLE_IMAGE(name) KernelImage(maypole_##name, maypole_end_##name)
#define MAYPOLE_GROUP(name)                                  \
  {MAYPOLE_IMAGE(code_##name), MAYPOLE_IMAGE(ptx_80_##name), \
   MAYPOLE_IMAGE(ptx_70_##name)},
  // In the order of KernelGroup.
  static const KernelImage kImages[kKernelGroups][3] = {
      MAYPOLE_IMAGES(MAYPOLE_GROUP)};
  return kImages[static_cast<int>(group)];
}

}  // namespace maypole::cuda
