// NCCL communicators. All calls are non-blocking, so that a missing member does
// not block the caller's thread.
#include <cstring>

#include "common/types.h"
#include "worker/backend/gpu/plugin/device.h"
#include "worker/backend/gpu/plugin/ranges.h"

using maypole::DType;
using maypole::gpu::plugin::FailedPrecondition;
using maypole::gpu::plugin::Failure;
using maypole::gpu::plugin::InvalidArgument;
using maypole::gpu::plugin::Loaded;
using maypole::gpu::plugin::NcclApi;
using maypole::gpu::plugin::RangeOf;

namespace {

// `communicator` is nullptr if there is none yet.
Failure NcclFailure(MaypoleGpuCode code, ncclResult_t result, const char* call,
                    ncclComm_t communicator) {
  const NcclApi& nccl = Loaded().Nccl();
  std::string text = std::string(call) + ": " + nccl.get_error_string(result) +
                     " (" + std::to_string(result) + ")";
  const char* last = nccl.get_last_error(communicator);
  if (last != nullptr && *last != '\0') text += std::string("; ") + last;
  return {code, static_cast<int32_t>(result), text};
}

// The code for a call that has failed immediately.
MaypoleGpuCode CodeOf(ncclResult_t result) {
  return result == ncclInvalidArgument || result == ncclInvalidUsage
             ? MAYPOLE_GPU_INVALID_ARGUMENT
             : MAYPOLE_GPU_ABORTED;
}

struct Element {
  ncclDataType_t type;
  uint64_t bytes;
};

Element ElementOf(uint8_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::kUint8:
      return {ncclUint8, 1};
    case DType::kInt8:
      return {ncclInt8, 1};
    case DType::kInt32:
      return {ncclInt32, 4};
    case DType::kInt64:
      return {ncclInt64, 8};
    case DType::kFloat16:
      return {ncclFloat16, 2};
    case DType::kFloat32:
      return {ncclFloat32, 4};
    case DType::kFloat64:
      return {ncclFloat64, 8};
    case DType::kBfloat16:
      return {ncclBfloat16, 2};
    default:
      throw InvalidArgument("NCCL has no element type for dtype " +
                            std::to_string(dtype));
  }
}

}  // namespace

void MaypoleGpu::MakeNcclId(uint8_t id[128]) {
  ncclUniqueId unique = {};
  static_assert(sizeof(unique) == 128);
  const ncclResult_t result = Loaded().Nccl().get_unique_id(&unique);
  if (result != ncclSuccess) {
    throw NcclFailure(MAYPOLE_GPU_INTERNAL, result, "ncclGetUniqueId", nullptr);
  }
  memcpy(id, &unique, sizeof(unique));
}

uint64_t MaypoleGpu::JoinCommunicator(const uint8_t id[128], int size,
                                      int rank) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw InvalidArgument("invalid rank " + std::to_string(rank) +
                          " of a communicator of size " + std::to_string(size));
  }
  const NcclApi& nccl = Loaded().Nccl();
  ncclUniqueId unique = {};
  memcpy(&unique, id, sizeof(unique));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t communicator = nullptr;
  const ncclResult_t result =
      nccl.comm_init_rank_config(&communicator, size, unique, rank, &config);
  if (result == ncclSuccess || result == ncclInProgress) {
    return communicators_.Add(communicator);
  }
  const Failure failure = NcclFailure(CodeOf(result), result,
                                      "ncclCommInitRankConfig", communicator);
  if (communicator != nullptr) nccl.comm_abort(communicator);
  throw failure;
}

bool MaypoleGpu::InProgress(ncclComm_t communicator) const {
  const NcclApi& nccl = Loaded().Nccl();
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = nccl.comm_get_async_error(communicator, &state);
  if (result != ncclSuccess) state = result;
  if (state == ncclInProgress) return true;
  if (state == ncclSuccess) return false;
  throw NcclFailure(MAYPOLE_GPU_ABORTED, state, "ncclCommGetAsyncError",
                    communicator);
}

bool MaypoleGpu::CommunicatorInProgress(uint64_t communicator) {
  return InProgress(communicators_.Get(communicator));
}

void MaypoleGpu::AllReduce(uint64_t communicator, uint64_t stream,
                           uint64_t data, uint64_t elements, uint8_t dtype) {
  const ncclComm_t members = communicators_.Get(communicator);
  const cudaStream_t on = streams_.Get(stream);
  const Element element = ElementOf(dtype);
  RangeOf(data, elements, element.bytes);
  if (InProgress(members)) {
    throw FailedPrecondition(
        "an earlier call on the communicator has not ended; poll it first");
  }
  void* buffer = reinterpret_cast<void*>(data);
  const ncclResult_t result = Loaded().Nccl().all_reduce(
      buffer, buffer, elements, element.type, ncclSum, members, on);
  if (result != ncclSuccess && result != ncclInProgress) {
    throw NcclFailure(CodeOf(result), result, "ncclAllReduce", members);
  }
}

void MaypoleGpu::AbortCommunicator(uint64_t communicator) {
  // Depending on its version, NCCL destroys the communicator within this call
  // or in a thread of its own, regardless of the configuration.
  const ncclResult_t result =
      Loaded().Nccl().comm_abort(communicators_.Take(communicator));
  if (result != ncclSuccess && result != ncclInProgress) {
    throw NcclFailure(MAYPOLE_GPU_ABORTED, result, "ncclCommAbort", nullptr);
  }
}
