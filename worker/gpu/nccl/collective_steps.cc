#include "worker/gpu/nccl/collective_steps.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/types.h"

namespace maypole::worker {
namespace {

using nccl::ncclDataType_t;
using nccl::ncclRedOp_t;

std::optional<ncclDataType_t> TypeOf(DType dtype) {
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
std::optional<ncclRedOp_t> OpOf(DType dtype, Op op) {
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

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBfloat16 ||
         dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

// The sum of one of it is a copy, bit for bit.
DType IntegerAsLargeAs(DType dtype) {
  switch (SizeOf(dtype)) {
    case 1:
      return DType::kUint8;
    case 2:
      return DType::kUint16;
    case 4:
      return DType::kInt32;
    default:
      return DType::kInt64;
  }
}

}  // namespace

absl::StatusOr<CollectiveSteps> CollectiveSteps::Make(
    const GpuOperation& operation, std::vector<uint64_t> tensors,
    uint64_t source) {
  CollectiveSteps steps;
  steps.operation_ = operation;
  steps.operation_.tensors.clear();
  steps.buffer_ = source != 0 ? source : tensors[0];
  steps.tensors_ = std::move(tensors);
  steps.count_ = operation.elements;
  if (operation.kind == Kind::kBroadcast) {
    steps.count_ *= SizeOf(operation.dtype);
    return steps;
  }
  const auto type = TypeOf(operation.dtype);
  const auto op = OpOf(operation.dtype, operation.op);
  if (operation.kind != Kind::kAllreduce || !type || !op) {
    return absl::UnimplementedError(
        absl::StrCat("NCCL cannot do this ", std::string(Name(operation.kind)),
                     ": ", std::string(Name(operation.op)), " of ",
                     std::string(Name(operation.dtype))));
  }
  steps.type_ = *type;
  steps.op_ = *op;
  return steps;
}

absl::Status CollectiveSteps::EnqueueBefore(GpuQueue& queue) const {
  const GpuOperation& o = operation_;
  if (o.kind != Kind::kAllreduce) return {};
  const bool prescaled = IsFloat(o.dtype) && o.prescale != 1.0;
  // Any byte but 0 is true, but NCCL compares numbers.
  if (tensors_.size() == 1 && !prescaled && o.dtype != DType::kBool) return {};
  const uint64_t output[] = {buffer_};
  return queue.Reduce({.dtype = o.dtype,
                       .inputs = tensors_,
                       .outputs = output,
                       .elements = o.elements,
                       .prescale = o.prescale},
                      o.op == Op::kAverage ? Op::kSum : o.op);
}

absl::Status CollectiveSteps::EnqueueAfter(GpuQueue& queue) const {
  const GpuOperation& o = operation_;
  const bool divided = o.op == Op::kAverage && o.divisor != 1;
  const bool scaled = IsFloat(o.dtype) && o.postscale != 1.0;
  if (o.kind == Kind::kAllreduce && (divided || scaled)) {
    const uint64_t input[] = {buffer_};
    return queue.Reduce({.dtype = o.dtype,
                         .inputs = input,
                         .outputs = tensors_,
                         .elements = o.elements,
                         .divisor = o.divisor,
                         .postscale = o.postscale},
                        divided ? Op::kAverage : Op::kSum);
  }
  std::vector<uint64_t> others;
  std::copy_if(tensors_.begin(), tensors_.end(), std::back_inserter(others),
               [this](uint64_t tensor) { return tensor != buffer_; });
  if (others.empty()) return {};
  const uint64_t input[] = {buffer_};
  return queue.Reduce({.dtype = IntegerAsLargeAs(o.dtype),
                       .inputs = input,
                       .outputs = others,
                       .elements = o.elements},
                      Op::kSum);
}

}  // namespace maypole::worker
