// A build without CUDA's nvcc: an image that every driver loads, with no
// kernel.
#include "common/gpu/kernels/kernels.h"

namespace maypole::cuda {

std::span<const KernelImage> KernelImages(KernelGroup /*group*/) {
  static constexpr char kPtx[] =
      ".version 8.0\n.target sm_70\n.address_size 64\n";
  static const KernelImage kImage = std::as_bytes(std::span(kPtx));
  return {&kImage, 1};
}

}  // namespace maypole::cuda
