// Memory as kernels access it: single values and 16-byte vectors at addresses.
//
// Purpose: kernels are compiled by nvcc for the device, and by the host
// compiler for tests (testing/cuda_shim.h, to be included before). All their
// accesses go through these functions, so that a test fails where a GPU would
// stop the program: at a misaligned address.
//
// Thread contract: called by the threads of a kernel; nothing is shared.
#ifndef MAYPOLE_COMMON_GPU_KERNELS_DEVICE_H_
#define MAYPOLE_COMMON_GPU_KERNELS_DEVICE_H_

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define MAYPOLE_DEVICE __device__ __forceinline__
#define MAYPOLE_UNROLL _Pragma("unroll")
#else
#define MAYPOLE_DEVICE inline
#define MAYPOLE_UNROLL
#endif

namespace maypole::cuda {

struct alignas(16) Vector {
  uint32_t words[4];
};

#ifdef __CUDACC__

// All addresses are in global memory. The compiler must know that; otherwise
// each load finds out at run time where its address lies.
template <typename T>
MAYPOLE_DEVICE T* Global(uint64_t address) {
  return static_cast<T*>(__cvta_global_to_generic(address));
}

template <typename T>
MAYPOLE_DEVICE T LoadAt(uint64_t address) {
  return *Global<T>(address);
}

template <typename T>
MAYPOLE_DEVICE void StoreAt(uint64_t address, T value) {
  *Global<T>(address) = value;
}

// Only accesses of built-in vector types are one instruction; a store of
// computed floats is not even then.
template <>
MAYPOLE_DEVICE Vector LoadAt<Vector>(uint64_t address) {
  const uint4 v = *Global<uint4>(address);
  return {{v.x, v.y, v.z, v.w}};
}

template <>
MAYPOLE_DEVICE void StoreAt<Vector>(uint64_t address, Vector v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address),
               "r"(v.words[0]), "r"(v.words[1]), "r"(v.words[2]),
               "r"(v.words[3])
               : "memory");
}

// The word becomes visible to the host and to other devices after all earlier
// writes.
MAYPOLE_DEVICE void PublishWord(uint64_t address, uint64_t word) {
  __threadfence_system();
  *static_cast<volatile uint64_t*>(Global<uint64_t>(address)) = word;
}

#else

template <typename T>
T LoadAt(uint64_t address) {
  shim::CheckAligned(address, sizeof(T));
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof(T));
  return value;
}

template <typename T>
void StoreAt(uint64_t address, T value) {
  shim::CheckAligned(address, sizeof(T));
  std::memcpy(reinterpret_cast<void*>(address), &value, sizeof(T));
}

inline void PublishWord(uint64_t address, uint64_t word) {
  shim::CheckAligned(address, sizeof(word));
  __atomic_store_n(reinterpret_cast<uint64_t*>(address), word,
                   __ATOMIC_SEQ_CST);
}

#endif

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_KERNELS_DEVICE_H_
