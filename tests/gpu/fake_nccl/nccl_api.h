// NCCL's types and functions, as of 2.28, that the fake library offers.
//
// Purpose: the fake compiles without NCCL's header; nccl_api_test.cc compares
// the two where the header is installed.
//
// Thread contract: as NCCL's. Types are values.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_NCCL_API_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_NCCL_API_H_

#include <climits>
#include <cstddef>

#include "common/gpu/cuda_types.h"

namespace maypole::nccl::fake {

struct ncclComm;
using ncclComm_t = ncclComm*;

struct ncclUniqueId {
  char internal[128];
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
  ncclNumResults = 8,
};

inline constexpr int kConfigUndefined = INT_MIN;
inline constexpr unsigned kConfigMagic = 0xcafebeef;

struct ncclConfig_t {
  size_t size = sizeof(ncclConfig_t);
  unsigned magic = kConfigMagic;
  unsigned version = 22809;
  int blocking = kConfigUndefined;
  int cgaClusterSize = kConfigUndefined;
  int minCTAs = kConfigUndefined;
  int maxCTAs = kConfigUndefined;
  const char* netName = nullptr;
  int splitShare = kConfigUndefined;
  int trafficClass = kConfigUndefined;
  const char* commName = nullptr;
  int collnetEnable = kConfigUndefined;
  int CTAPolicy = kConfigUndefined;
  int shrinkShare = kConfigUndefined;
  int nvlsCTAs = kConfigUndefined;
  int nChannelsPerNetPeer = kConfigUndefined;
  int nvlinkCentricSched = kConfigUndefined;
};

enum ncclRedOp_t : int {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
};

enum ncclDataType_t : int {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};
inline constexpr int kTypes = 10;  // without those of 8-bit floats

using cuda::CUstream;

extern "C" {

ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks,
                                    ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           CUstream stream);
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           CUstream stream);
ncclResult_t ncclReduce(const void* from, void* to, size_t count,
                        ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, CUstream stream);
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count,
                               ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, CUstream stream);
ncclResult_t ncclAllGather(const void* from, void* to, size_t count,
                           ncclDataType_t type, ncclComm_t comm,
                           CUstream stream);
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, CUstream stream);
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, CUstream stream);

// The fake's own: how often this process has called the function of NCCL so
// far. It counts ncclGetUniqueId, what initialises or ends a communicator, and
// collectives, sends and receives.
uint64_t fakeNcclCalls(const char* name);

}  // extern "C"

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_NCCL_API_H_
