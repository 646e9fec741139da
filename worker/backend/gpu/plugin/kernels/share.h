// Common parts of the kernels' bodies: macros for code that nvcc compiles for
// the device and the host compiler for tests, and 16-byte vectors.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_SHARE_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_SHARE_H_

#include <cstdint>

#ifdef __CUDACC__
#define MAYPOLE_SHARE __device__ __forceinline__
#define MAYPOLE_UNROLL _Pragma("unroll")
#else
#define MAYPOLE_SHARE inline
#define MAYPOLE_UNROLL
#endif

namespace maypole::gpu::plugin {

// Loaded and stored by one instruction; its address is a multiple of 16.
struct alignas(16) Vector {
  uint32_t words[4];
};

#ifdef __CUDACC__
// The compiler does not merge the loads of an aligned struct on its own.
MAYPOLE_SHARE Vector LoadVector(const Vector* from) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}
MAYPOLE_SHARE void StoreVector(Vector* to, const Vector& v) {
  *reinterpret_cast<uint4*>(to) =
      make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]);
}
#else
MAYPOLE_SHARE Vector LoadVector(const Vector* from) { return *from; }
MAYPOLE_SHARE void StoreVector(Vector* to, const Vector& v) { *to = v; }
#endif

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_SHARE_H_
