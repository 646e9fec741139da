// The types and constants of NCCL's C API that Maypole uses.
//
// Purpose: NCCL is opened at run time (nccl.h), and Maypole is built on
// machines that have none: so NCCL's header is not included. The names and
// values are those of NCCL's nccl.h, in the forms that every version from 2.18
// on has; nccl_types_test.cc compares them with it where there is one.
//
// Source: NCCL's API reference,
// https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html
//
// Thread contract: types only.
#ifndef MAYPOLE_COMMON_GPU_NCCL_NCCL_TYPES_H_
#define MAYPOLE_COMMON_GPU_NCCL_NCCL_TYPES_H_

#include <climits>
#include <cstddef>

#include "common/gpu/cuda_types.h"

namespace maypole::nccl {

using ncclComm_t = struct ncclComm*;
using cudaStream_t = cuda::CUstream;  // the runtime's is the driver's

inline constexpr size_t NCCL_UNIQUE_ID_BYTES = 128;
struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};

enum ncclResult_t : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

inline constexpr int NCCL_CONFIG_UNDEF_INT = INT_MIN;

// As NCCL 2.18 has it. Newer versions have more members at the end; from `size`
// and `version` they see that these are missing, and use their own defaults.
struct ncclConfig_t {
  size_t size = sizeof(ncclConfig_t);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = NCCL_CONFIG_UNDEF_INT;
  int cgaClusterSize = NCCL_CONFIG_UNDEF_INT;
  int minCTAs = NCCL_CONFIG_UNDEF_INT;
  int maxCTAs = NCCL_CONFIG_UNDEF_INT;
  const char* netName = nullptr;
  int splitShare = NCCL_CONFIG_UNDEF_INT;
};

enum ncclRedOp_t : int {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
};

enum ncclDataType_t : int {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};

}  // namespace maypole::nccl

#endif  // MAYPOLE_COMMON_GPU_NCCL_NCCL_TYPES_H_
