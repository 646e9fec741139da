#include "common/gpu/runner/check_operation.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/gpu/kernels/kernels.h"
#include "common/limits.h"
#include "common/types.h"

namespace maypole {
namespace {

constexpr uint64_t kMostElements = kMaxGpuMemoryBytes;

bool IsOfAGpu(Kind kind) {
  return kind == Kind::kBroadcast || Reduces(kind) || Gathers(kind);
}

// True if each tensor belongs to exactly one member.
bool MembersFit(const GpuOperation& o) {
  std::vector<bool> found(o.tensors.size());
  for (const GpuMember& member : o.members) {
    if (member.tensor == kNoTensor) continue;
    if (member.tensor >= found.size() || found[member.tensor]) return false;
    found[member.tensor] = true;
  }
  return std::find(found.begin(), found.end(), false) == found.end();
}

// The sum of the counts, or any number above `most` if the sum is above it.
uint64_t TotalOf(const GpuOperation& o, uint64_t most) {
  uint64_t total = 0;
  for (const uint64_t count : o.counts) {
    if (count > most - total) return most + 1;
    total += count;
  }
  return total;
}

bool CountsFit(const GpuOperation& o) {
  const size_t n = o.members.size();
  switch (o.kind) {
    case Kind::kReducescatter:
      return o.counts.size() == n && TotalOf(o, kMostElements) == o.elements;
    case Kind::kAllgather: {
      const uint64_t total = TotalOf(o, kMostElements);
      return o.counts.size() == n && total > 0 && total <= kMostElements;
    }
    case Kind::kAlltoall: {
      const uint64_t most = kMaxRanks * kMostElements;
      const uint64_t total = TotalOf(o, most);
      return o.counts.size() == n * n && total > 0 && total <= most;
    }
    default:
      return true;
  }
}

// Null if nothing is wrong.
const char* WrongWith(const GpuOperation& o) {
  if (!IsOfAGpu(o.kind)) return "GPUs do not execute its kind";
  if (!IsKnown(o.dtype) || !IsKnown(o.op) ||
      (Reduces(o.kind) && o.dtype == DType::kBool && o.op == Op::kAverage)) {
    return "there is no such operation on this type";
  }
  if (o.tensors.empty() || o.tensors.size() > cuda::kMaxReduced) {
    return "it must have 1 to 64 tensors on this node";
  }
  if (o.divisor < 1 || o.divisor > cuda::kMaxDivisor) {
    return "its divisor must be 1 to 2^31 - 1";
  }
  if (!Gathers(o.kind) && (o.elements < 1 || o.elements > kMostElements)) {
    return "its tensors must have 1 to 2^40 elements";
  }
  if (o.kind == Kind::kAllreduce) return nullptr;
  if (o.members.size() > kMaxRanks || !MembersFit(o)) {
    return "each tensor must be that of one member of its process set";
  }
  if (o.kind == Kind::kBroadcast && o.root >= o.members.size()) {
    return "its root must be a member of its process set";
  }
  if (!CountsFit(o)) {
    return "its counts must be as many as its members need, and sum up to its "
           "elements";
  }
  return nullptr;
}

}  // namespace

Status CheckOperation(const GpuOperation& o) {
  const char* const wrong = WrongWith(o);
  if (wrong == nullptr) return {};
  return Status(
      Code::kInvalidArgument,
      "no GPU can execute this " + std::string(Name(o.kind)) + ": " + wrong);
}

}  // namespace maypole
