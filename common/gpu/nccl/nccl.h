// Nccl: the functions of NCCL, libnccl.so.2, that Maypole calls.
//
// Purpose: NCCL is never linked, so one build runs with every NCCL from 2.18
// on, and without one. The members have the functions' own names.
//
//   const Nccl* nccl = nullptr;
//   Status s = OpenNccl("", &nccl);      // kUnavailable: no usable NCCL
//   s = NcclStatus(*nccl, nccl->ncclGroupStart(), "ncclGroupStart");
//
// Thread contract: all functions may be called by any thread.
//
// Invariants: all pointers are set. A library that was opened stays loaded
// until the process ends, because NCCL's threads may run until then.
#ifndef MAYPOLE_COMMON_GPU_NCCL_NCCL_H_
#define MAYPOLE_COMMON_GPU_NCCL_NCCL_H_

#include <optional>
#include <string>
#include <string_view>

#include "common/gpu/nccl/nccl_types.h"
#include "common/status.h"

namespace maypole::nccl {

// In 2.18 everything that Maypole uses has its final form:
// ncclCommInitRankConfig() without blocking, and all members of ncclConfig_t.
inline constexpr int kMinNcclVersion = 21800;

struct Nccl {
  ncclResult_t (*ncclGetVersion)(int* version);
  ncclResult_t (*ncclGetUniqueId)(ncclUniqueId* id);
  const char* (*ncclGetErrorString)(ncclResult_t result);
  const char* (*ncclGetLastError)(ncclComm_t comm);  // null: of any
  ncclResult_t (*ncclCommInitRankConfig)(ncclComm_t* comm, int ranks,
                                         ncclUniqueId id, int rank,
                                         ncclConfig_t* config);
  ncclResult_t (*ncclCommAbort)(ncclComm_t comm);
  ncclResult_t (*ncclCommGetAsyncError)(ncclComm_t comm, ncclResult_t* error);
  ncclResult_t (*ncclGroupStart)();
  ncclResult_t (*ncclGroupEnd)();
  ncclResult_t (*ncclAllReduce)(const void* from, void* to, size_t count,
                                ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream);
  ncclResult_t (*ncclBroadcast)(const void* from, void* to, size_t count,
                                ncclDataType_t type, int root, ncclComm_t comm,
                                cudaStream_t stream);
  ncclResult_t (*ncclReduce)(const void* from, void* to, size_t count,
                             ncclDataType_t type, ncclRedOp_t op, int root,
                             ncclComm_t comm, cudaStream_t stream);
  ncclResult_t (*ncclReduceScatter)(const void* from, void* to, size_t count,
                                    ncclDataType_t type, ncclRedOp_t op,
                                    ncclComm_t comm, cudaStream_t stream);
  ncclResult_t (*ncclAllGather)(const void* from, void* to, size_t count,
                                ncclDataType_t type, ncclComm_t comm,
                                cudaStream_t stream);
  ncclResult_t (*ncclSend)(const void* from, size_t count, ncclDataType_t type,
                           int peer, ncclComm_t comm, cudaStream_t stream);
  ncclResult_t (*ncclRecv)(void* to, size_t count, ncclDataType_t type,
                           int peer, ncclComm_t comm, cudaStream_t stream);

  int version = 0;   // 22809 is 2.28.9
  std::string path;  // of the file
};

// Opens the library `path`; if it is empty, libnccl.so.2 as the dynamic linker
// finds it. A library is opened once per process (after a failure, the next
// call tries again). Returns kUnavailable, with one line that says what was
// found and where, if there is none, if it is not NCCL, or if it is too old.
Status OpenNccl(const std::string& path, const Nccl** nccl);

// An NCCL that this process has loaded already, such as the one that torch
// brings. Nothing is loaded or called in it but ncclGetVersion().
struct LoadedNccl {
  std::string path;
  int version = 0;
};
std::optional<LoadedNccl> FindLoadedNccl();

// kOk for ncclSuccess and ncclInProgress; otherwise the code that fits, and
// "CALL: TEXT", with what NCCL says about its last error, in one line.
Status NcclStatus(const Nccl& nccl, ncclResult_t result, std::string_view call);

// A version as NCCL writes it: 22809 is "2.28.9".
std::string NcclVersion(int number);

}  // namespace maypole::nccl

#endif  // MAYPOLE_COMMON_GPU_NCCL_NCCL_H_
