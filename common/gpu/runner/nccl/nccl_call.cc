#include "common/gpu/runner/nccl/nccl_call.h"

namespace maypole {

using nccl::ncclDataType_t;
using nccl::ncclRedOp_t;

std::optional<ncclDataType_t> NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kBool:  // 0 or 1, after the first step
      return nccl::ncclUint8;
    case DType::kInt8:
      return nccl::ncclInt8;
    case DType::kInt32:
      return nccl::ncclInt32;
    case DType::kInt64:
      return nccl::ncclInt64;
    case DType::kFloat16:
      return nccl::ncclFloat16;
    case DType::kFloat32:
      return nccl::ncclFloat32;
    case DType::kFloat64:
      return nccl::ncclFloat64;
    case DType::kBfloat16:
      return nccl::ncclBfloat16;
    case DType::kUint16:
    case DType::kInt16:
      return std::nullopt;
  }
  return std::nullopt;
}

// The sum of bools is OR, their product AND.
std::optional<ncclRedOp_t> NcclOpOf(DType dtype, Op op) {
  const bool bools = dtype == DType::kBool;
  switch (op) {
    case Op::kSum:
      return bools ? nccl::ncclMax : nccl::ncclSum;
    case Op::kAverage:
      if (bools) return std::nullopt;
      return nccl::ncclSum;
    case Op::kProduct:
      return bools ? nccl::ncclMin : nccl::ncclProd;
    case Op::kMin:
      return nccl::ncclMin;
    case Op::kMax:
      return nccl::ncclMax;
    case Op::kAdasum:
      return std::nullopt;
  }
  return std::nullopt;
}

Status Make(const NcclCall& call, const nccl::Nccl& nccl,
            const NcclCommunicator& communicator, cuda::CUstream stream) {
  const auto* const from = reinterpret_cast<const void*>(call.from);
  auto* const to = reinterpret_cast<void*>(call.to);
  const int peer = static_cast<int>(call.peer);
  const nccl::ncclComm_t comm = communicator.handle();
  switch (call.function) {
    case NcclCall::kAllReduce:
      return communicator.Check(
          nccl.ncclAllReduce(from, to, call.count, call.type, call.op, comm,
                             stream),
          "ncclAllReduce");
    case NcclCall::kBroadcast:
      return communicator.Check(
          nccl.ncclBroadcast(from, to, call.count, call.type, peer, comm,
                             stream),
          "ncclBroadcast");
    case NcclCall::kReduce:
      return communicator.Check(nccl.ncclReduce(from, to, call.count, call.type,
                                                call.op, peer, comm, stream),
                                "ncclReduce");
    case NcclCall::kReduceScatter:
      return communicator.Check(
          nccl.ncclReduceScatter(from, to, call.count, call.type, call.op, comm,
                                 stream),
          "ncclReduceScatter");
    case NcclCall::kAllGather:
      return communicator.Check(
          nccl.ncclAllGather(from, to, call.count, call.type, comm, stream),
          "ncclAllGather");
    case NcclCall::kSend:
      return communicator.Check(
          nccl.ncclSend(from, call.count, call.type, peer, comm, stream),
          "ncclSend");
    case NcclCall::kRecv:
      return communicator.Check(
          nccl.ncclRecv(to, call.count, call.type, peer, comm, stream),
          "ncclRecv");
  }
  return Status(Code::kInternal, "unknown function of NCCL");
}

}  // namespace maypole
