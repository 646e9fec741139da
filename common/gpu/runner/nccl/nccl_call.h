// NcclCall: the arguments of one GPU's collective, send or receive.
//
//   const NcclCall call = {.function = NcclCall::kBroadcast, .from = tensor,
//                          .to = tensor, .count = bytes, .peer = root};
//   Status s = Make(call, nccl, communicator, stream);
//
// Thread contract: values and pure functions; Make() as NcclCommunicator.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_NCCL_NCCL_CALL_H_
#define MAYPOLE_COMMON_GPU_RUNNER_NCCL_NCCL_CALL_H_

#include <cstdint>
#include <optional>

#include "common/gpu/cuda_types.h"
#include "common/gpu/nccl/nccl.h"
#include "common/gpu/runner/nccl/nccl_communicator.h"
#include "common/status.h"
#include "common/types.h"

namespace maypole {

struct NcclCall {
  enum Function {
    kAllReduce,
    kBroadcast,
    kReduce,
    kReduceScatter,
    kAllGather,
    kSend,
    kRecv,
  };

  Function function;
  uint64_t from = 0;  // addresses
  uint64_t to = 0;
  uint64_t count = 0;  // elements, as NCCL counts them for the function
  nccl::ncclDataType_t type = nccl::ncclUint8;  // bytes, if nothing is reduced
  nccl::ncclRedOp_t op = nccl::ncclSum;
  uint32_t peer = 0;  // NCCL rank; or the root
};

// NCCL's names for what is reduced; nothing if NCCL cannot.
std::optional<nccl::ncclDataType_t> NcclTypeOf(DType dtype);
std::optional<nccl::ncclRedOp_t> NcclOpOf(DType dtype, Op op);

// Calls NCCL.
Status Make(const NcclCall& call, const nccl::Nccl& nccl,
            const NcclCommunicator& communicator, cuda::CUstream stream);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_NCCL_NCCL_CALL_H_
