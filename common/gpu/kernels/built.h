// Whether this build has compiled kernels (--config=cuda), known without
// linking them.
//
// Thread contract: a constant.
#ifndef MAYPOLE_COMMON_GPU_KERNELS_BUILT_H_
#define MAYPOLE_COMMON_GPU_KERNELS_BUILT_H_

namespace maypole::cuda {

#ifdef MAYPOLE_CUDA_KERNELS
inline constexpr bool kKernelsAreBuilt = true;
#else
inline constexpr bool kKernelsAreBuilt = false;
#endif

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_KERNELS_BUILT_H_
