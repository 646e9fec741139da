#include "worker/gpu/gpu_work.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/gpu/kernels/kernels.h"
#include "common/types.h"
#include "worker/gpu/check_operation.h"

namespace maypole::worker {

GpuWork::GpuWork(EpochGpus::Callbacks callbacks, std::string nccl_library,
                 NcclTimeouts timeouts)
    : callbacks_(std::move(callbacks)),
      memories_(&queues_, callbacks_.on_opened),
      ends_(callbacks_.on_ended),
      communicators_(std::move(nccl_library), timeouts),
      collectives_(&queues_, &memories_, &communicators_, &ends_) {}

void GpuWork::Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
                   Fd descriptor) {
  if (!abort_.ok()) return memories_.Refuse(id, abort_);
  memories_.Open(id, request, std::move(descriptor));
}

// --- Communicators -----------------------------------------------------------

void GpuWork::MakeCommunicatorId(uint32_t number) {
  callbacks_.on_communicator_id(number, communicators_.MakeId());
}

void GpuWork::Connect(GpuCommunicator communicator, const std::string& id) {
  if (!abort_.ok()) return;
  std::vector<const cuda::Gpu*> gpus;
  for (const uint32_t gpu : communicator.gpus) {
    if (gpu < queues_.size()) gpus.push_back(&queues_[gpu].gpu());
  }
  communicators_.Connect(std::move(communicator), std::move(gpus), id);
}

// --- Runs --------------------------------------------------------------------

void GpuWork::Run(GpuRun run) {
  if (!abort_.ok()) return ends_.Refuse(run, abort_);
  if (run.operations.empty()) {
    return ends_.Refuse(run, absl::InvalidArgumentError("a run is empty"));
  }
  if (run.communicator != 0) {
    collectives_.Add(std::move(run));
  } else {
    RunAlone(run);
  }
}

void GpuWork::RunAlone(const GpuRun& run) {
  absl::Status s = CheckOperation(run.operations[0]);
  if (!s.ok()) return ends_.Refuse(run, s);
  const GpuTensor& first = run.operations[0].tensors[0];
  s = memories_.AddressOf(first, 1).status();
  if (!s.ok()) return ends_.Refuse(run, s);
  GpuQueue& queue = queues_[first.gpu];
  for (const GpuOperation& operation : run.operations) {
    s = EnqueueAlone(operation, first.gpu);
    if (!s.ok()) break;
  }
  if (!queue.in_batch()) return ends_.Refuse(run, s);
  const uint64_t id = ends_.Begin(run, 1);
  const absl::Status recorded =
      queue.Record([this, id, s](absl::Status of_gpu) {
        ends_.PartEnded(id, s.ok() ? of_gpu : s);
      });
  if (!recorded.ok()) ends_.PartEnded(id, s.ok() ? recorded : s);
}

absl::Status GpuWork::EnqueueAlone(const GpuOperation& operation,
                                   uint32_t gpu) {
  if (absl::Status s = CheckOperation(operation); !s.ok()) return s;
  if (operation.kind != Kind::kAllreduce) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a ", std::string(Name(operation.kind)), " needs a communicator"));
  }
  std::vector<uint64_t> addresses;
  for (const GpuTensor& tensor : operation.tensors) {
    if (tensor.gpu != gpu) {
      return absl::InvalidArgumentError(
          "a run on several GPUs needs a communicator");
    }
    const absl::StatusOr<uint64_t> address = memories_.AddressOf(
        tensor, operation.elements * SizeOf(operation.dtype));
    if (!address.ok()) return address.status();
    addresses.push_back(*address);
  }
  const absl::Status s = queues_[gpu].Reduce({.dtype = operation.dtype,
                                              .inputs = addresses,
                                              .outputs = addresses,
                                              .elements = operation.elements,
                                              .prescale = operation.prescale,
                                              .divisor = operation.divisor,
                                              .postscale = operation.postscale},
                                             operation.op);
  for (const GpuTensor& tensor : operation.tensors) memories_.NoteUse(tensor);
  return s;
}

// --- Abort -------------------------------------------------------------------

void GpuWork::Abort() { AbortWith(absl::AbortedError("the epoch is over")); }

void GpuWork::AbortWith(const absl::Status& why) {
  if (!abort_.ok()) return;
  abort_ = why;
  abort_deadline_ = Clock::now() + communicators_.timeouts().abort;
  ends_.FailAll(why);
  collectives_.Abort(why);
  communicators_.Abort();
}

bool GpuWork::PollAbort() {
  if (abort_.ok()) return false;
  bool changed = false;
  if (!communicators_gone_ && communicators_.gone()) {
    communicators_gone_ = true;
    collectives_.NoteGone();
    changed = true;
  }
  if (!past_deadline_ && Clock::now() >= abort_deadline_) {
    past_deadline_ = true;
    ends_.EndAll();
    changed = true;
  }
  return changed;
}

// --- Progress ----------------------------------------------------------------

bool GpuWork::Poll() {
  bool changed = queues_.Poll();
  changed |= collectives_.Poll();
  if (!collectives_.error().ok()) AbortWith(collectives_.error());
  changed |= PollAbort();
  // Who knows what NCCL still does, if it does not return.
  const bool may_release = abort_.ok() || communicators_gone_;
  return (may_release && memories_.Release()) || changed;
}

bool GpuWork::full() const {
  return abort_.ok() && (queues_.full() || collectives_.wants_room());
}

bool GpuWork::idle() const {
  return queues_.idle() && memories_.idle() && collectives_.idle() &&
         ends_.empty() && (abort_.ok() || communicators_gone_);
}

}  // namespace maypole::worker
