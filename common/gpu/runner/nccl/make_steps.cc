#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>

#include "common/gpu/runner/nccl/collective_steps.h"
#include "common/gpu/runner/nccl/tensor_places.h"

namespace maypole {
namespace {

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBfloat16 ||
         dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

// True if NCCL's gathering and scattering collectives fit: GPU i belongs to
// member i alone, and all counts are equal.
bool IsRegular(const GpuOperation& o, const GpuCommunicator& c) {
  if (o.members.size() != c.size) return false;
  for (uint32_t i = 0; i < c.size; ++i) {
    if (o.members[i].gpu != i || o.counts[i] != o.counts[0]) return false;
  }
  return true;
}

class StepsMaker {
 public:
  StepsMaker(const GpuOperation& operation, const GpuCommunicator& communicator,
             std::vector<TensorPlace> places)
      : o_(operation),
        c_(communicator),
        places_(std::move(places)),
        size_(SizeOf(o_.dtype)),
        steps_(c_.gpus.size()),
        tensors_(c_.gpus.size()),
        results_(c_.gpus.size()) {
    for (const TensorPlace& place : places_) {
      tensors_[place.gpu].push_back(place.tensor);
      results_[place.gpu].push_back(place.result);
    }
  }

  StatusOr<std::vector<CollectiveSteps>> Make() &&;

 private:
  bool alone() const { return c_.number == 0; }
  // Null if the member is of another node.
  const TensorPlace* PlaceOf(const GpuMember& member) const {
    return member.tensor == kNoTensor ? nullptr : &places_[member.tensor];
  }
  bool IsOn(size_t gpu, const GpuMember& member) const {
    const TensorPlace* const place = PlaceOf(member);
    return place != nullptr && place->gpu == gpu;
  }

  Status PrepareReduction();
  // The whole reduction, or its parts before and after NCCL.
  ReduceStep Whole(size_t gpu, std::vector<uint64_t> outputs) const;
  ReduceStep First(size_t gpu, uint64_t output) const;
  ReduceStep Last(uint64_t input, std::vector<uint64_t> outputs,
                  uint64_t elements) const;
  // Whether the GPU's tensors are reduced before NCCL.
  bool HasFirst(size_t gpu) const;

  void Allreduce(size_t gpu);
  void Broadcast(size_t gpu);
  void Reducescatter(size_t gpu);
  void ReducescatterAlone();
  void ScatterByNccl(size_t gpu);
  // On a GPU with several ranks, the reduced parts lie in its first tensor,
  // each at its offset, until they are copied to their destinations.
  bool IsShared(size_t gpu) const { return tensors_[gpu].size() > 1; }
  void FinishParts(size_t gpu);
  void CopyParts(size_t gpu);
  void Allgather(size_t gpu);
  void AllgatherAlone();
  void Alltoall();
  void Exchange(const GpuMember& from, const GpuMember& to, uint64_t sent,
                uint64_t received, uint64_t bytes);

  void Copy(size_t gpu, uint64_t from, uint64_t to, uint64_t bytes);
  // To all results of the GPU.
  void CopyToAll(size_t gpu, uint64_t from, uint64_t bytes);

  const GpuOperation& o_;
  const GpuCommunicator& c_;
  const std::vector<TensorPlace> places_;
  const uint64_t size_;  // of an element
  std::vector<CollectiveSteps> steps_;
  // Addresses, by GPU.
  std::vector<std::vector<uint64_t>> tensors_;
  std::vector<std::vector<uint64_t>> results_;
  // The type of a reduction by NCCL.
  nccl::ncclDataType_t type_ = nccl::ncclUint8;
  nccl::ncclRedOp_t op_ = nccl::ncclSum;
  bool prepares_ = false;  // something must be computed before NCCL
  bool finishes_ = false;  // ... after it
};

StatusOr<std::vector<CollectiveSteps>> StepsMaker::Make() && {
  if (Reduces(o_.kind) && !alone()) {
    if (Status s = PrepareReduction(); !s.ok()) return s;
  }
  if (o_.kind == Kind::kAlltoall) Alltoall();
  if (o_.kind == Kind::kAllgather && alone()) AllgatherAlone();
  if (o_.kind == Kind::kReducescatter && alone()) ReducescatterAlone();
  for (size_t gpu = 0; gpu < steps_.size(); ++gpu) {
    if (o_.kind == Kind::kAllreduce) Allreduce(gpu);
    if (o_.kind == Kind::kBroadcast) Broadcast(gpu);
    if (o_.kind == Kind::kAllgather && !alone()) Allgather(gpu);
    if (o_.kind == Kind::kReducescatter && !alone()) Reducescatter(gpu);
  }
  return std::move(steps_);
}

// --- Copies ------------------------------------------------------------------

void StepsMaker::Copy(size_t gpu, uint64_t from, uint64_t to, uint64_t bytes) {
  if (bytes > 0 && from != to) steps_[gpu].copies.push_back({from, to, bytes});
}

void StepsMaker::CopyToAll(size_t gpu, uint64_t from, uint64_t bytes) {
  for (const uint64_t result : results_[gpu]) Copy(gpu, from, result, bytes);
}

// --- Reductions --------------------------------------------------------------

Status StepsMaker::PrepareReduction() {
  const auto type = NcclTypeOf(o_.dtype);
  const auto op = NcclOpOf(o_.dtype, o_.op);
  if (!type || !op) {
    return Status(Code::kUnimplemented, "NCCL cannot do this " +
                                            std::string(Name(o_.kind)) + ": " +
                                            std::string(Name(o_.op)) + " of " +
                                            std::string(Name(o_.dtype)));
  }
  type_ = *type;
  op_ = *op;
  const KernelSteps kernels = KernelStepsOf(o_.dtype, o_.op, o_.prescale,
                                            o_.divisor, o_.postscale, c_.size);
  prepares_ = kernels.before;
  finishes_ = kernels.after;
  if (kernels.nccl_averages) op_ = nccl::ncclAvg;
  return {};
}

ReduceStep StepsMaker::Whole(size_t gpu, std::vector<uint64_t> outputs) const {
  return {.dtype = o_.dtype,
          .op = o_.op,
          .inputs = tensors_[gpu],
          .outputs = std::move(outputs),
          .elements = o_.elements,
          .prescale = o_.prescale,
          .divisor = o_.divisor,
          .postscale = o_.postscale};
}

ReduceStep StepsMaker::First(size_t gpu, uint64_t output) const {
  ReduceStep step = Whole(gpu, {output});
  if (step.op == Op::kAverage) step.op = Op::kSum;
  step.divisor = 1;
  step.postscale = 1.0;
  return step;
}

ReduceStep StepsMaker::Last(uint64_t input, std::vector<uint64_t> outputs,
                            uint64_t elements) const {
  return {.dtype = o_.dtype,
          .op = o_.op == Op::kAverage ? Op::kAverage : Op::kSum,
          .inputs = {input},
          .outputs = std::move(outputs),
          .elements = elements,
          .divisor = o_.divisor,
          .postscale = o_.postscale};
}

bool StepsMaker::HasFirst(size_t gpu) const {
  return IsShared(gpu) || prepares_;
}

void StepsMaker::Allreduce(size_t gpu) {
  CollectiveSteps& steps = steps_[gpu];
  if (alone()) {
    steps.before.push_back(Whole(gpu, results_[gpu]));
    return;
  }
  const uint64_t buffer = results_[gpu][0];
  uint64_t from = tensors_[gpu][0];
  if (HasFirst(gpu)) {
    steps.before.push_back(First(gpu, buffer));
    from = buffer;
  }
  steps.calls.push_back({.function = NcclCall::kAllReduce,
                         .from = from,
                         .to = buffer,
                         .count = o_.elements,
                         .type = type_,
                         .op = op_});
  if (finishes_) {
    steps.after.push_back(Last(buffer, results_[gpu], o_.elements));
  } else {
    CopyToAll(gpu, buffer, o_.elements * size_);
  }
}

// In place, one kernel does everything, and writes more than the parts.
void StepsMaker::ReducescatterAlone() {
  const bool in_place =
      std::all_of(o_.tensors.begin(), o_.tensors.end(),
                  [](const GpuTensor& t) { return t.result == kInPlace; });
  if (in_place) {
    steps_[0].before.push_back(Whole(0, tensors_[0]));
  } else {
    steps_[0].before.push_back(Whole(0, {tensors_[0][0]}));
    CopyParts(0);
  }
}

void StepsMaker::Reducescatter(size_t gpu) {
  CollectiveSteps& steps = steps_[gpu];
  const uint64_t from = tensors_[gpu][0];
  if (HasFirst(gpu)) steps.before.push_back(First(gpu, from));
  if (IsRegular(o_, c_)) {
    steps.calls.push_back({.function = NcclCall::kReduceScatter,
                           .from = from,
                           .to = results_[gpu][0],
                           .count = o_.counts[0],
                           .type = type_,
                           .op = op_});
  } else {
    ScatterByNccl(gpu);
  }
  if (finishes_) FinishParts(gpu);
  if (IsShared(gpu)) CopyParts(gpu);
}

void StepsMaker::ScatterByNccl(size_t gpu) {
  uint64_t from = tensors_[gpu][0];
  for (size_t i = 0; i < o_.members.size(); ++i) {
    const GpuMember& member = o_.members[i];
    if (o_.counts[i] == 0) continue;
    const bool to_result = IsOn(gpu, member) && !IsShared(gpu);
    steps_[gpu].calls.push_back({.function = NcclCall::kReduce,
                                 .from = from,
                                 .to = to_result ? results_[gpu][0] : from,
                                 .count = o_.counts[i],
                                 .type = type_,
                                 .op = op_,
                                 .peer = member.gpu});
    from += o_.counts[i] * size_;
  }
}

// One kernel, however many ranks the GPU has: it covers the first part to the
// end of the last.
void StepsMaker::FinishParts(size_t gpu) {
  uint64_t at = 0, begin = UINT64_MAX, end = 0;
  for (size_t i = 0; i < o_.members.size(); ++i) {
    if (IsOn(gpu, o_.members[i]) && o_.counts[i] > 0) {
      begin = std::min(begin, at);
      end = at + o_.counts[i];
    }
    at += o_.counts[i];
  }
  if (end == 0) return;
  const uint64_t parts =
      IsShared(gpu) ? tensors_[gpu][0] + begin * size_ : results_[gpu][0];
  steps_[gpu].after.push_back(Last(parts, {parts}, end - begin));
}

void StepsMaker::CopyParts(size_t gpu) {
  uint64_t from = tensors_[gpu][0];
  for (size_t i = 0; i < o_.members.size(); ++i) {
    const uint64_t bytes = o_.counts[i] * size_;
    if (IsOn(gpu, o_.members[i])) {
      Copy(gpu, from, PlaceOf(o_.members[i])->result, bytes);
    }
    from += bytes;
  }
}

// --- What only moves data ----------------------------------------------------

void StepsMaker::Broadcast(size_t gpu) {
  const GpuMember& root = o_.members[o_.root];
  const uint64_t bytes = o_.elements * size_;
  uint64_t from = results_[gpu][0];
  uint64_t to = from;
  if (IsOn(gpu, root)) {
    from = PlaceOf(root)->tensor;
    to = PlaceOf(root)->result;
  }
  if (alone()) return CopyToAll(gpu, from, bytes);
  steps_[gpu].calls.push_back({.function = NcclCall::kBroadcast,
                               .from = from,
                               .to = to,
                               .count = bytes,
                               .peer = root.gpu});
  CopyToAll(gpu, to, bytes);
}

void StepsMaker::AllgatherAlone() {
  uint64_t at = 0;
  for (size_t i = 0; i < o_.members.size(); ++i) {
    const uint64_t bytes = o_.counts[i] * size_;
    for (const uint64_t result : results_[0]) {
      Copy(0, places_[o_.members[i].tensor].tensor, result + at, bytes);
    }
    at += bytes;
  }
}

void StepsMaker::Allgather(size_t gpu) {
  std::vector<NcclCall>& calls = steps_[gpu].calls;
  const uint64_t result = results_[gpu][0];
  if (IsRegular(o_, c_)) {
    calls.push_back({.function = NcclCall::kAllGather,
                     .from = tensors_[gpu][0],
                     .to = result,
                     .count = o_.counts[0] * size_});
    return;
  }
  uint64_t to = result;
  for (size_t i = 0; i < o_.members.size(); ++i) {
    const GpuMember& member = o_.members[i];
    const uint64_t bytes = o_.counts[i] * size_;
    if (bytes == 0) continue;
    calls.push_back({.function = NcclCall::kBroadcast,
                     .from = IsOn(gpu, member) ? PlaceOf(member)->tensor : to,
                     .to = to,
                     .count = bytes,
                     .peer = member.gpu});
    to += bytes;
  }
  CopyToAll(gpu, result, to - result);
}

// Skips pairs that do not involve this node, so that a large matrix takes no
// longer than it must. Two GPUs' calls match because both make theirs in the
// order of senders and, for each sender, of receivers.
void StepsMaker::Alltoall() {
  const size_t n = o_.members.size();
  std::vector<size_t> all(n), here;
  for (size_t i = 0; i < n; ++i) {
    all[i] = i;
    if (PlaceOf(o_.members[i]) != nullptr) here.push_back(i);
  }
  std::vector<uint64_t> received(n);
  for (size_t i = 0; i < n; ++i) {
    uint64_t sent = 0;
    for (const size_t j : PlaceOf(o_.members[i]) != nullptr ? all : here) {
      const uint64_t bytes = o_.counts[i * n + j] * size_;
      if (bytes == 0) continue;
      Exchange(o_.members[i], o_.members[j], sent, received[j], bytes);
      sent += bytes;
      received[j] += bytes;
    }
  }
}

void StepsMaker::Exchange(const GpuMember& from, const GpuMember& to,
                          uint64_t sent, uint64_t received, uint64_t bytes) {
  const TensorPlace* const sender = PlaceOf(from);
  const TensorPlace* const receiver = PlaceOf(to);
  if (from.gpu == to.gpu) {
    return Copy(sender->gpu, sender->tensor + sent, receiver->result + received,
                bytes);
  }
  if (sender != nullptr) {
    steps_[sender->gpu].calls.push_back({.function = NcclCall::kSend,
                                         .from = sender->tensor + sent,
                                         .count = bytes,
                                         .peer = to.gpu});
  }
  if (receiver != nullptr) {
    steps_[receiver->gpu].calls.push_back({.function = NcclCall::kRecv,
                                           .to = receiver->result + received,
                                           .count = bytes,
                                           .peer = from.gpu});
  }
}

}  // namespace

KernelSteps KernelStepsOf(DType dtype, Op op, double prescale, int64_t divisor,
                          double postscale, uint32_t gpus) {
  const bool floats = IsFloat(dtype);
  const bool divided = op == Op::kAverage && divisor != 1;
  const bool scaled = floats && postscale != 1.0;
  const bool exact = SizeOf(dtype) > 2 || std::has_single_bit(gpus);
  KernelSteps steps;
  steps.nccl_averages =
      divided && !scaled && floats && exact && divisor == gpus;
  // Any byte but 0 is true, but NCCL compares numbers.
  steps.before = (floats && prescale != 1.0) || dtype == DType::kBool;
  steps.after = (divided && !steps.nccl_averages) || scaled;
  return steps;
}

StatusOr<std::vector<CollectiveSteps>> MakeSteps(
    const GpuOperation& operation, const GpuCommunicator& communicator,
    const GpuMemories& memories) {
  StatusOr<std::vector<TensorPlace>> places =
      FindPlaces(operation, communicator, memories);
  if (!places.ok()) return places.status();
  StatusOr<std::vector<CollectiveSteps>> steps =
      StepsMaker(operation, communicator, *places).Make();
  for (size_t t = 0; steps.ok() && t < places->size(); ++t) {
    const GpuTensor& tensor = operation.tensors[t];
    CollectiveSteps& of_gpu = (*steps)[(*places)[t].gpu];
    if (tensor.ready != nullptr) {
      of_gpu.ready.push_back(static_cast<cuda::CUevent>(tensor.ready));
    }
    if (tensor.ran != nullptr) {
      of_gpu.ran.push_back(static_cast<cuda::CUevent>(tensor.ran));
    }
  }
  return steps;
}

}  // namespace maypole
