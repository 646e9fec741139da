// Compares cuda_types.h and driver.h with CUDA's own headers. The compiler
// checks everything: the test passes if it compiles.
#include "common/gpu/cuda_types.h"

#include "common/gpu/driver.h"

namespace {

namespace ours = maypole::cuda;

// Macros in cuda.h, so they are read before it is included.
constexpr unsigned kRegisterPortable = ours::CU_MEMHOSTREGISTER_PORTABLE;
constexpr unsigned kRegisterMap = ours::CU_MEMHOSTREGISTER_DEVICEMAP;
constexpr unsigned kAllocPortable = ours::CU_MEMHOSTALLOC_PORTABLE;
constexpr unsigned kAllocMap = ours::CU_MEMHOSTALLOC_DEVICEMAP;

// Each function that Maypole calls, in the version that driver.cc asks for.
#define CALLS(CALL)                              \
  CALL(cuInit, 2000)                             \
  CALL(cuDriverGetVersion, 2020)                 \
  CALL(cuGetErrorName, 6000)                     \
  CALL(cuGetErrorString, 6000)                   \
  CALL(cuDeviceGetCount, 2000)                   \
  CALL(cuDeviceGet, 2000)                        \
  CALL(cuDeviceGetName, 2000)                    \
  CALL(cuDeviceGetUuid, 11040)                   \
  CALL(cuDeviceGetAttribute, 2000)               \
  CALL(cuDeviceCanAccessPeer, 4000)              \
  CALL(cuDevicePrimaryCtxRetain, 7000)           \
  CALL(cuDevicePrimaryCtxRelease, 11000)         \
  CALL(cuCtxPushCurrent, 4000)                   \
  CALL(cuCtxPopCurrent, 4000)                    \
  CALL(cuThreadExchangeStreamCaptureMode, 10010) \
  CALL(cuMemGetInfo, 3020)                       \
  CALL(cuPointerGetAttributes, 7000)             \
  CALL(cuMemAlloc, 3020)                         \
  CALL(cuMemFree, 3020)                          \
  CALL(cuMemHostAlloc, 2020)                     \
  CALL(cuMemFreeHost, 2000)                      \
  CALL(cuMemHostRegister, 6050)                  \
  CALL(cuMemHostUnregister, 4000)                \
  CALL(cuMemHostGetDevicePointer, 3020)          \
  CALL(cuIpcGetMemHandle, 4010)                  \
  CALL(cuIpcOpenMemHandle, 11000)                \
  CALL(cuIpcCloseMemHandle, 4010)                \
  CALL(cuMemGetAllocationGranularity, 10020)     \
  CALL(cuMemCreate, 10020)                       \
  CALL(cuMemRelease, 10020)                      \
  CALL(cuMemAddressReserve, 10020)               \
  CALL(cuMemAddressFree, 10020)                  \
  CALL(cuMemMap, 10020)                          \
  CALL(cuMemUnmap, 10020)                        \
  CALL(cuMemSetAccess, 10020)                    \
  CALL(cuMemExportToShareableHandle, 10020)      \
  CALL(cuMemImportFromShareableHandle, 10020)    \
  CALL(cuStreamCreate, 2000)                     \
  CALL(cuStreamDestroy, 4000)                    \
  CALL(cuStreamQuery, 2000)                      \
  CALL(cuStreamSynchronize, 2000)                \
  CALL(cuStreamWaitEvent, 3020)                  \
  CALL(cuStreamGetCtx, 9020)                     \
  CALL(cuStreamIsCapturing, 10000)               \
  CALL(cuStreamWriteValue64, 11070)              \
  CALL(cuMemcpyAsync, 4000)                      \
  CALL(cuEventCreate, 2000)                      \
  CALL(cuEventDestroy, 4000)                     \
  CALL(cuEventRecord, 2000)                      \
  CALL(cuEventQuery, 2000)                       \
  CALL(cuEventSynchronize, 2000)                 \
  CALL(cuEventElapsedTime, 2000)                 \
  CALL(cuModuleLoadData, 2000)                   \
  CALL(cuModuleGetFunction, 2000)                \
  CALL(cuLaunchKernel, 4000)

// Before cuda.h is included, because its macros rename some of them.
#define OUR_CALL(name, version) \
  using name##_ours = decltype(ours::Driver::name);
CALLS(OUR_CALL)

}  // namespace

#include <cuda.h>
#include <cudaTypedefs.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

namespace {

static_assert(kRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kRegisterMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(kAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kAllocMap == CU_MEMHOSTALLOC_DEVICEMAP);

#define SAME(name)                                    \
  static_assert(static_cast<long long>(ours::name) == \
                static_cast<long long>(::name))
SAME(CUDA_SUCCESS);
SAME(CUDA_ERROR_INVALID_VALUE);
SAME(CUDA_ERROR_OUT_OF_MEMORY);
SAME(CUDA_ERROR_NOT_INITIALIZED);
SAME(CUDA_ERROR_DEINITIALIZED);
SAME(CUDA_ERROR_STUB_LIBRARY);
SAME(CUDA_ERROR_DEVICE_UNAVAILABLE);
SAME(CUDA_ERROR_NO_DEVICE);
SAME(CUDA_ERROR_INVALID_DEVICE);
SAME(CUDA_ERROR_INVALID_IMAGE);
SAME(CUDA_ERROR_INVALID_CONTEXT);
SAME(CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(CUDA_ERROR_INVALID_PTX);
SAME(CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
SAME(CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME(CUDA_ERROR_OPERATING_SYSTEM);
SAME(CUDA_ERROR_INVALID_HANDLE);
SAME(CUDA_ERROR_NOT_FOUND);
SAME(CUDA_ERROR_NOT_READY);
SAME(CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(CUDA_ERROR_LAUNCH_FAILED);
SAME(CUDA_ERROR_NOT_PERMITTED);
SAME(CUDA_ERROR_NOT_SUPPORTED);
SAME(CUDA_ERROR_SYSTEM_NOT_READY);
SAME(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE);
SAME(CUDA_ERROR_MPS_CONNECTION_FAILED);
SAME(CUDA_ERROR_MPS_RPC_FAILURE);
SAME(CUDA_ERROR_MPS_SERVER_NOT_READY);
SAME(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
SAME(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED);
SAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(CUDA_ERROR_UNKNOWN);
SAME(CU_GET_PROC_ADDRESS_SUCCESS);
SAME(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
SAME(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
SAME(CU_GET_PROC_ADDRESS_DEFAULT);
SAME(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
#if CUDA_VERSION >= 12020
SAME(CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
#endif
SAME(CU_COMPUTEMODE_DEFAULT);
SAME(CU_COMPUTEMODE_PROHIBITED);
SAME(CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
SAME(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(CU_MEMORYTYPE_HOST);
SAME(CU_MEMORYTYPE_DEVICE);
SAME(CU_STREAM_NON_BLOCKING);
SAME(CU_STREAM_WRITE_VALUE_DEFAULT);
SAME(CU_EVENT_DISABLE_TIMING);
SAME(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(CU_STREAM_CAPTURE_STATUS_NONE);
SAME(CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(CU_MEM_LOCATION_TYPE_DEVICE);
SAME(CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(CU_MEM_HANDLE_TYPE_NONE);
SAME(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

// Structs: the same size, and each member at the same offset.
static_assert(sizeof(ours::CUuuid) == sizeof(::CUuuid));
static_assert(sizeof(ours::CUipcMemHandle) == sizeof(::CUipcMemHandle));
static_assert(sizeof(ours::CUmemLocation) == sizeof(::CUmemLocation));
static_assert(sizeof(ours::CUmemAccessDesc) == sizeof(::CUmemAccessDesc));
static_assert(sizeof(ours::CUmemAllocationProp) ==
              sizeof(::CUmemAllocationProp));
#define SAME_PLACE(type, member) \
  static_assert(offsetof(ours::type, member) == offsetof(::type, member))
SAME_PLACE(CUmemLocation, id);
SAME_PLACE(CUmemAccessDesc, flags);
SAME_PLACE(CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(CUmemAllocationProp, location);
SAME_PLACE(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);

// Functions: the same number of parameters, of the same sizes, pointers where
// theirs are.
template <typename A, typename B>
constexpr bool kSameParameter =
    sizeof(A) == sizeof(B) &&
    std::is_pointer_v<A> ==
        std::is_pointer_v<B>&& std::is_floating_point_v<A> ==
        std::is_floating_point_v<B>;

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
requires(sizeof...(A) == sizeof...(B)) struct SameCall<R (*)(A...), S (*)(B...)>
    : std::bool_constant<(kSameParameter<A, B> && ...)> {
};

#define SAME_CALL(name, version) \
  static_assert(SameCall<name##_ours, PFN_##name##_v##version>::value);
CALLS(SAME_CALL)

TEST(CudaTypes, AreThoseOfTheToolkit) {
  // Only what this header declares; newer ones may have more.
  EXPECT_GE(CUDA_VERSION, 12000);
}

}  // namespace
