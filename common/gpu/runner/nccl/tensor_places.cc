#include "common/gpu/runner/nccl/tensor_places.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "common/types.h"

namespace maypole {
namespace {

// Bytes of a tensor and of its result, and where in the tensor an in-place
// result begins.
struct Extent {
  uint64_t tensor;
  uint64_t result;
  uint64_t in_place = 0;
};

// Of member `i`.
Extent ExtentOf(const GpuOperation& o, size_t i) {
  const uint64_t size = SizeOf(o.dtype);
  const size_t n = o.members.size();
  const auto sum = [&](size_t from, size_t count) {
    const auto first = o.counts.begin() + static_cast<ptrdiff_t>(from);
    return size * std::accumulate(first, first + static_cast<ptrdiff_t>(count),
                                  uint64_t{0});
  };
  switch (o.kind) {
    case Kind::kReducescatter:
      return {o.elements * size, o.counts[i] * size, sum(0, i)};
    case Kind::kAllgather:
      return {o.counts[i] * size, sum(0, n)};
    case Kind::kAlltoall: {
      uint64_t received = 0;
      for (size_t j = 0; j < n; ++j) received += o.counts[j * n + i];
      return {sum(i * n, n), received * size};
    }
    default:
      return {o.elements * size, o.elements * size};
  }
}

std::vector<Extent> ExtentsOf(const GpuOperation& o) {
  if (o.kind == Kind::kAllreduce) {
    return std::vector<Extent>(o.tensors.size(), ExtentOf(o, 0));
  }
  std::vector<Extent> extents(o.tensors.size());
  for (size_t i = 0; i < o.members.size(); ++i) {
    const uint32_t tensor = o.members[i].tensor;
    if (tensor != kNoTensor) extents[tensor] = ExtentOf(o, i);
  }
  return extents;
}

StatusOr<size_t> IndexOf(uint32_t gpu, const GpuCommunicator& c) {
  const auto it = std::find(c.gpus.begin(), c.gpus.end(), gpu);
  if (it != c.gpus.end()) return static_cast<size_t>(it - c.gpus.begin());
  if (c.number == 0) {
    return Status(Code::kInvalidArgument,
                  "a run on several GPUs needs a communicator");
  }
  return Status(Code::kInvalidArgument,
                "GPU " + std::to_string(gpu) +
                    " of this node does not belong to communicator " +
                    std::to_string(c.number));
}

StatusOr<uint64_t> ResultOf(const GpuOperation& o, const GpuTensor& t,
                            const Extent& extent, uint64_t address,
                            const GpuMemories& memories) {
  if (t.result != kInPlace) {
    return memories.AddressOf(t, t.result, extent.result);
  }
  if (!Gathers(o.kind)) return address + extent.in_place;
  if (extent.result == 0) return 0;
  return Status(
      Code::kInvalidArgument,
      "there is no room for the result of this " + std::string(Name(o.kind)));
}

// Checks that the members' GPUs are those of their tensors.
Status CheckMembers(const GpuOperation& o, const GpuCommunicator& c,
                    const std::vector<TensorPlace>& places) {
  for (size_t i = 0; i < o.members.size(); ++i) {
    const GpuMember& member = o.members[i];
    const bool here =
        member.gpu >= c.first && member.gpu - c.first < c.gpus.size();
    if (member.gpu < c.size && here == (member.tensor != kNoTensor) &&
        (!here || places[member.tensor].gpu == member.gpu - c.first)) {
      continue;
    }
    return Status(Code::kInvalidArgument,
                  "member " + std::to_string(i) + " of this " +
                      std::string(Name(o.kind)) + " cannot be on NCCL rank " +
                      std::to_string(member.gpu) + " of communicator " +
                      std::to_string(c.number));
  }
  return {};
}

Status CheckGpus(const GpuCommunicator& c,
                 const std::vector<TensorPlace>& places) {
  std::vector<bool> used(c.gpus.size());
  for (const TensorPlace& place : places) used[place.gpu] = true;
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused == used.end()) return {};
  return Status(Code::kInvalidArgument,
                "there is no tensor on GPU " +
                    std::to_string(c.gpus[unused - used.begin()]) +
                    " of communicator " + std::to_string(c.number));
}

}  // namespace

StatusOr<std::vector<TensorPlace>> FindPlaces(
    const GpuOperation& operation, const GpuCommunicator& communicator,
    const GpuMemories& memories) {
  const std::vector<Extent> extents = ExtentsOf(operation);
  std::vector<TensorPlace> places;
  for (size_t t = 0; t < operation.tensors.size(); ++t) {
    const GpuTensor& tensor = operation.tensors[t];
    const StatusOr<size_t> gpu = IndexOf(tensor.gpu, communicator);
    if (!gpu.ok()) return gpu.status();
    const StatusOr<uint64_t> address =
        memories.AddressOf(tensor, tensor.offset, extents[t].tensor);
    if (!address.ok()) return address.status();
    const StatusOr<uint64_t> result =
        ResultOf(operation, tensor, extents[t], *address, memories);
    if (!result.ok()) return result.status();
    places.push_back({*gpu, *address, *result});
  }
  Status s = CheckGpus(communicator, places);
  if (s.ok() && operation.kind != Kind::kAllreduce) {
    s = CheckMembers(operation, communicator, places);
  }
  if (!s.ok()) return s;
  return places;
}

}  // namespace maypole
