// The functions of libnccl.so.2.
#include <memory>
#include <string>

#include "tests/gpu/fake_nccl/communicator.h"
#include "tests/gpu/fake_nccl/config.h"
#include "tests/gpu/fake_nccl/driver.h"
#include "tests/gpu/fake_nccl/group.h"
#include "tests/gpu/fake_nccl/nccl_api.h"
#include "tests/gpu/fake_nccl/process.h"
#include "tests/gpu/fake_nccl/root.h"

namespace maypole::nccl::fake {
namespace {

using CommPointer = std::shared_ptr<Communicator>;

ncclResult_t Error(ncclResult_t result, const std::string& text) {
  return Process::Get().Error(result, text);
}

// The communicator, if it can be used; else sets the error.
CommPointer Ready(const char* name, ncclComm_t handle, ncclResult_t* error) {
  if (handle == nullptr) {
    *error = Error(ncclInvalidArgument,
                   std::string(name) + " : comm argument is NULL");
    return nullptr;
  }
  CommPointer comm = Process::Get().Find(handle);
  if (comm->busy()) {
    Illegal(std::string(name) + " on rank " + std::to_string(comm->rank()) +
            ": Attempt to use communicator before the previous operation "
            "returned ncclSuccess");
  }
  *error = comm->state();
  return *error == ncclSuccess ? comm : nullptr;
}

// Calls body(group) within a group of its own.
template <typename Body>
ncclResult_t InGroup(const char* name, Body body) {
  Group& group = Group::Mine();
  bool later = false;
  ncclResult_t result = Process::Get().Failure(name, &later);
  group.Start();
  if (result != ncclSuccess) result = group.Fail(result, later);
  if (result == ncclSuccess) {
    result = body(group);
    if (result != ncclSuccess) group.Fail(result, false);
  }
  const ncclResult_t ended = group.End();
  return result != ncclSuccess ? result : ended;
}

ncclResult_t CheckCall(const Communicator& comm, const Call& call) {
  const std::string name = NameOf(call.kind);
  if (call.type < 0 || call.type >= kTypes) {
    return Error(ncclInvalidArgument, name + " : invalid type");
  }
  if (call.op < 0 || call.op >= ncclNumOps) {
    return Error(ncclInvalidArgument, name + " : invalid reduction operation");
  }
  const bool has_peer = call.kind == Kind::kBroadcast ||
                        call.kind == Kind::kReduce ||
                        call.kind == Kind::kSend || call.kind == Kind::kRecv;
  if (has_peer && (call.peer < 0 || call.peer >= comm.ranks())) {
    return Error(ncclInvalidArgument, name + " : invalid root or peer");
  }
  if (comm.finalised()) {
    Illegal(name + ": the communicator has been finalized");
  }
  return ncclSuccess;
}

ncclResult_t Operate(ncclComm_t handle, const Operation& operation) {
  const char* const name = NameOf(operation.call.kind);
  return InGroup(name, [&](Group& group) {
    ncclResult_t error = ncclSuccess;
    const CommPointer comm = Ready(name, handle, &error);
    if (comm == nullptr) return error;
    error = CheckCall(*comm, operation.call);
    if (error != ncclSuccess) return error;
    const bool empty =
        operation.call.count == 0 && operation.call.kind < Kind::kSend;
    if (!empty) group.Add(comm, operation);
    return ncclSuccess;
  });
}

ncclResult_t CheckConfig(const ncclConfig_t* config) {
  if (config == nullptr) return ncclSuccess;
  if (config->magic != kConfigMagic) {
    return Error(ncclInvalidArgument,
                 "ncclConfig_t argument not initialized via "
                 "NCCL_CONFIG_INITIALIZER");
  }
  if (config->blocking != 0 && config->blocking != 1 &&
      config->blocking != kConfigUndefined) {
    return Error(ncclInvalidArgument, "Invalid config blocking attribute");
  }
  return ncclSuccess;
}

ncclResult_t Initialise(Group& group, ncclComm_t* user, int ranks,
                        const ncclUniqueId& id, int rank,
                        const ncclConfig_t* config) {
  if (user == nullptr || ranks < 1 || rank < 0 || rank >= ranks) {
    return Error(ncclInvalidArgument,
                 "Invalid rank requested : " + std::to_string(rank) + "/" +
                     std::to_string(ranks));
  }
  if (const ncclResult_t error = CheckConfig(config)) return error;
  cuda::CUcontext context = nullptr;
  cuda::CUuuid gpu = {};
  if (OpenDriver() == nullptr ||
      OpenDriver()->current(&context, &gpu) != cuda::CUDA_SUCCESS) {
    return Error(ncclUnhandledCudaError,
                 "no CUDA driver, or this thread has no current context");
  }
  Process::Get().StopAtExit();
  const bool blocking = config == nullptr || config->blocking != 0;
  const auto comm =
      std::make_shared<Communicator>(rank, ranks, blocking, context, gpu);
  comm->Begin();
  *user = Process::Get().Add(comm);
  group.Add(Task{.kind = Task::kInitialise,
                 .comm = comm,
                 .handle = *user,
                 .id = id,
                 .user = user});
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = Process::Get().config().version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  bool later = false;
  const ncclResult_t error = Process::Get().Failure("ncclGetUniqueId", &later);
  if (error != ncclSuccess) return error;
  return id == nullptr ? ncclInvalidArgument : StartRoot(id);
}

uint64_t fakeNcclCalls(const char* name) {
  return Process::Get().CallsOf(name);
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[ncclNumResults] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result]
                                                : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return Process::Get().last_error(); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks,
                                    ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const ncclResult_t result =
      InGroup("ncclCommInitRankConfig", [&](Group& group) {
        return Initialise(group, comm, ranks, id, rank, config);
      });
  const bool blocking = config == nullptr || config->blocking != 0;
  return result == ncclSuccess && !blocking ? ncclInProgress : result;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return InGroup("ncclCommFinalize", [&](Group& group) {
    ncclResult_t error = ncclSuccess;
    const CommPointer comm = Ready("ncclCommFinalize", handle, &error);
    if (comm == nullptr) return error;
    if (comm->finalised()) return ncclInvalidArgument;
    group.Add(Task{.kind = Task::kFinalise, .comm = comm, .handle = handle});
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  return InGroup("ncclCommDestroy", [&](Group& group) {
    ncclResult_t error = ncclSuccess;
    const CommPointer comm = Ready("ncclCommDestroy", handle, &error);
    if (comm == nullptr) return error;
    group.Add(Task{.kind = Task::kDestroy, .comm = comm, .handle = handle});
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  return InGroup("ncclCommAbort", [&](Group& group) {
    const CommPointer comm = Process::Get().Find(handle);
    comm->Abort();
    group.Add(Task{.kind = Task::kAbort, .comm = comm, .handle = handle});
    return ncclSuccess;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  if (handle == nullptr || error == nullptr) return ncclInvalidArgument;
  *error = Process::Get().Find(handle)->state();
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  ncclResult_t error = ncclSuccess;
  const CommPointer comm = Ready("ncclCommCount", handle, &error);
  if (comm != nullptr) *count = comm->ranks();
  return error;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  ncclResult_t error = ncclSuccess;
  const CommPointer comm = Ready("ncclCommUserRank", handle, &error);
  if (comm != nullptr) *rank = comm->rank();
  return error;
}

ncclResult_t ncclGroupStart() {
  Group::Mine().Start();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return Group::Mine().End(); }

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           CUstream stream) {
  return Operate(comm,
                 {{Kind::kAllReduce, type, op, -1, count}, from, to, stream});
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           CUstream stream) {
  return Operate(
      comm, {{Kind::kBroadcast, type, ncclSum, root, count}, from, to, stream});
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count,
                        ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, CUstream stream) {
  return Operate(comm,
                 {{Kind::kReduce, type, op, root, count}, from, to, stream});
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count,
                               ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, CUstream stream) {
  return Operate(
      comm, {{Kind::kReduceScatter, type, op, -1, count}, from, to, stream});
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count,
                           ncclDataType_t type, ncclComm_t comm,
                           CUstream stream) {
  return Operate(
      comm, {{Kind::kAllGather, type, ncclSum, -1, count}, from, to, stream});
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, CUstream stream) {
  return Operate(
      comm, {{Kind::kSend, type, ncclSum, peer, count}, from, nullptr, stream});
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, CUstream stream) {
  return Operate(
      comm, {{Kind::kRecv, type, ncclSum, peer, count}, nullptr, to, stream});
}

}  // extern "C"

}  // namespace maypole::nccl::fake
