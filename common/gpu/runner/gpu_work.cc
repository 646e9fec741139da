#include "common/gpu/runner/gpu_work.h"

#include <string>
#include <utility>
#include <vector>

#include "common/gpu/runner/check_operation.h"
#include "common/gpu/runner/nccl/collective_steps.h"

namespace maypole {

GpuWork::GpuWork(EpochGpus::Callbacks callbacks, std::string nccl_library,
                 NcclTimeouts timeouts)
    : callbacks_(std::move(callbacks)),
      memories_(&queues_, callbacks_.on_opened),
      ends_(callbacks_.on_ended, callbacks_.on_enqueued),
      communicators_(std::move(nccl_library), timeouts),
      collectives_(&queues_, &memories_, &communicators_, &ends_) {}

void GpuWork::Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
                   Fd descriptor) {
  if (!abort_.ok()) return memories_.Refuse(id, abort_);
  memories_.Open(id, request, std::move(descriptor));
}

void GpuWork::OpenOwn(const uint8_t (&uuid)[16]) {
  if (!abort_.ok()) return memories_.Refuse({}, abort_);
  memories_.OpenOwn(uuid);
}

// --- Communicators -----------------------------------------------------------

void GpuWork::MakeCommunicatorId(uint32_t number) {
  callbacks_.on_communicator_id(number, communicators_.MakeId());
}

void GpuWork::Connect(GpuCommunicator communicator, const std::string& id) {
  if (!abort_.ok()) return;
  std::vector<const cuda::Gpu*> gpus;
  for (const uint32_t gpu : communicator.gpus) {
    if (queues_.Has(gpu)) gpus.push_back(&queues_[gpu].gpu());
  }
  communicators_.Connect(std::move(communicator), std::move(gpus), id);
}

// --- Runs --------------------------------------------------------------------

void GpuWork::Run(GpuRun run) {
  if (!abort_.ok()) return ends_.Refuse(run, abort_);
  if (run.operations.empty()) {
    return ends_.Refuse(run, Status(Code::kInvalidArgument, "a run is empty"));
  }
  if (run.communicator != 0) {
    collectives_.Add(std::move(run));
  } else {
    RunAlone(run);
  }
}

void GpuWork::RunAlone(const GpuRun& run) {
  Status s = CheckOperation(run.operations[0]);
  if (!s.ok()) return ends_.Refuse(run, s);
  const uint32_t gpu = run.operations[0].tensors[0].gpu;
  if (!queues_.Has(gpu)) {
    return ends_.Refuse(run,
                        Status(Code::kFailedPrecondition,
                               "no memory of the operation's GPU is open"));
  }
  GpuQueue& queue = queues_[gpu];
  for (const GpuOperation& operation : run.operations) {
    s = EnqueueAlone(operation, gpu);
    if (!s.ok()) break;
  }
  if (!queue.in_batch() && !s.ok()) return ends_.Refuse(run, s);
  const uint64_t id = ends_.Begin(run, 1);
  const Status recorded = queue.Record([this, id, s](Status of_gpu) {
    ends_.PartEnded(id, s.ok() ? of_gpu : s);
  });
  if (!recorded.ok()) ends_.PartEnded(id, s.ok() ? recorded : s);
}

Status GpuWork::EnqueueAlone(const GpuOperation& operation, uint32_t gpu) {
  if (Status s = CheckOperation(operation); !s.ok()) return s;
  const StatusOr<std::vector<CollectiveSteps>> steps =
      MakeSteps(operation, {.number = 0, .size = 1, .first = 0, .gpus = {gpu}},
                memories_);
  if (!steps.ok()) return steps.status();
  Status s = (*steps)[0].EnqueueBefore(queues_[gpu]);
  if (s.ok()) s = (*steps)[0].EnqueueAfter(queues_[gpu]);
  for (const GpuTensor& tensor : operation.tensors) memories_.NoteUse(tensor);
  return s;
}

// --- Abort -------------------------------------------------------------------

void GpuWork::Abort() {
  AbortWith(Status(Code::kAborted, "the epoch is over"));
}

void GpuWork::AbortWith(const Status& why) {
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
  // If NCCL does not return, it may still use the memory.
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

}  // namespace maypole
