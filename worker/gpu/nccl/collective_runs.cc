#include "worker/gpu/nccl/collective_runs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/types.h"
#include "worker/gpu/check_operation.h"

namespace maypole::worker {
namespace {

absl::Status Enqueue(const nccl::Nccl& nccl, const NcclCommunicator& c,
                     const CollectiveSteps& steps, cuda::CUstream stream) {
  void* const buffer = steps.buffer();
  if (steps.kind() == Kind::kBroadcast) {
    return c.Check(
        nccl.ncclBroadcast(buffer, buffer, steps.count(), steps.type(),
                           steps.root(), c.handle(), stream),
        "ncclBroadcast");
  }
  return c.Check(nccl.ncclAllReduce(buffer, buffer, steps.count(), steps.type(),
                                    steps.op(), c.handle(), stream),
                 "ncclAllReduce");
}

}  // namespace

CollectiveRuns::CollectiveRuns(GpuQueues* queues, GpuMemories* memories,
                               Communicators* communicators, RunEnds* ends)
    : queues_(*queues),
      memories_(*memories),
      communicators_(*communicators),
      ends_(*ends) {}

void CollectiveRuns::Add(GpuRun run) {
  waiting_.push_back(std::move(run));
  while (error_.ok() && BeginNext()) {
  }
}

bool CollectiveRuns::Poll() {
  if (aborted_ || !error_.ok()) return false;
  const bool launched = PollLaunching();
  const bool failed = PollRunning();
  bool begun = false;
  while (error_.ok() && BeginNext()) begun = true;
  return launched || failed || begun;
}

// --- What is to be done ------------------------------------------------------

absl::StatusOr<CollectiveRuns::Steps> CollectiveRuns::MakeSteps(
    const GpuRun& run, const GpuCommunicator& communicator) const {
  Steps steps(communicator.gpus.size());
  for (const GpuOperation& operation : run.operations) {
    absl::Status s = CheckOperation(operation);
    if (s.ok()) s = AddSteps(operation, communicator, steps);
    if (!s.ok()) return s;
  }
  return steps;
}

absl::Status CollectiveRuns::AddSteps(const GpuOperation& operation,
                                      const GpuCommunicator& communicator,
                                      Steps& steps) const {
  const uint64_t bytes = operation.elements * SizeOf(operation.dtype);
  const std::vector<uint32_t>& gpus = communicator.gpus;
  std::vector<std::vector<uint64_t>> tensors(gpus.size());
  uint64_t source = 0;
  size_t source_gpu = gpus.size();
  for (size_t t = 0; t < operation.tensors.size(); ++t) {
    const GpuTensor& tensor = operation.tensors[t];
    const absl::StatusOr<uint64_t> address = memories_.AddressOf(tensor, bytes);
    if (!address.ok()) return address.status();
    const size_t i = static_cast<size_t>(
        std::find(gpus.begin(), gpus.end(), tensor.gpu) - gpus.begin());
    if (i == gpus.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("GPU ", tensor.gpu, " of this node does not belong to ",
                       "communicator ", communicator.number));
    }
    tensors[i].push_back(*address);
    if (operation.kind == Kind::kBroadcast && t == operation.root_tensor) {
      source = *address;
      source_gpu = i;
    }
  }
  if (operation.kind == Kind::kBroadcast) {
    // Wraps if the root's GPU has a lower NCCL rank.
    const uint32_t root_gpu = operation.root - communicator.first;
    if (operation.root >= communicator.size ||
        std::min<size_t>(root_gpu, gpus.size()) != source_gpu) {
      return absl::InvalidArgumentError(
          absl::StrCat("NCCL rank ", operation.root, " of communicator ",
                       communicator.number, " cannot be a broadcast's root"));
    }
  }
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (tensors[i].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no tensor on GPU ", gpus[i],
                       " of communicator ", communicator.number));
    }
    absl::StatusOr<CollectiveSteps> made = CollectiveSteps::Make(
        operation, std::move(tensors[i]), i == source_gpu ? source : 0);
    if (!made.ok()) return made.status();
    steps[i].push_back(*std::move(made));
  }
  return {};
}

// --- From waiting to launching -----------------------------------------------

bool CollectiveRuns::BeginNext() {
  wants_room_ = false;
  if (waiting_.empty() || launching_) return false;
  const uint32_t number = waiting_.front().communicator;
  if (communicators_.IsNew(number)) {
    if (running_.empty()) communicators_.Begin(number);
    return false;
  }
  const absl::StatusOr<CommunicatorPart*> part = communicators_.Find(number);
  if (part.ok() && *part == nullptr) return false;
  if (part.ok() && queues_.full()) {
    wants_room_ = true;
    return false;
  }
  const GpuRun run = std::move(waiting_.front());
  waiting_.pop_front();
  if (!part.ok()) {
    ends_.Refuse(run, part.status());
    return true;
  }
  absl::StatusOr<Steps> steps = MakeSteps(run, (*part)->communicator());
  if (steps.ok()) {
    Begin(run, *part, *std::move(steps));
  } else {
    ends_.Refuse(run, steps.status());
  }
  return true;
}

void CollectiveRuns::Begin(const GpuRun& run, CommunicatorPart* part,
                           Steps steps) {
  const size_t gpus = part->size();
  Launching l = {ends_.Begin(run, gpus), part, std::move(steps)};
  running_.emplace(l.id, Running{part, gpus});
  const absl::Status before = EnqueueBefore(l);
  const absl::Status s = before.ok() ? Launch(l) : before;
  for (const GpuOperation& operation : run.operations) {
    for (const GpuTensor& tensor : operation.tensors) memories_.NoteUse(tensor);
  }
  if (before.ok()) {
    launching_ = std::move(l);
    error_.Update(s);
  } else {  // NCCL knows nothing of it
    for (size_t i = 0; i < gpus; ++i) EndPart(l, i, s);
  }
}

absl::Status CollectiveRuns::EnqueueBefore(const Launching& l) {
  for (size_t i = 0; i < l.steps.size(); ++i) {
    for (const CollectiveSteps& steps : l.steps[i]) {
      const absl::Status s = steps.EnqueueBefore(QueueOf(l, i));
      if (!s.ok()) return s;
    }
  }
  return {};
}

absl::Status CollectiveRuns::Launch(const Launching& l) {
  const nccl::Nccl& nccl = l.part->nccl();
  // Else NCCL, which restores what it found, would make a context on GPU 0.
  const cuda::CurrentGpu current(l.part->at(0).gpu());
  if (absl::Status s = ToAbsl(current.status()); !s.ok()) return s;
  absl::Status s = l.part->at(0).Check(nccl.ncclGroupStart(), "ncclGroupStart");
  if (!s.ok()) return s;
  for (size_t i = 0; i < l.steps.size(); ++i) {
    const auto enqueue = [&](cuda::CUstream stream) {
      absl::Status all;
      for (const CollectiveSteps& steps : l.steps[i]) {
        all.Update(Enqueue(nccl, l.part->at(i), steps, stream));
      }
      return all;
    };
    s.Update(QueueOf(l, i).Collective(l.steps[i].size(), enqueue));
  }
  s.Update(l.part->at(0).Check(nccl.ncclGroupEnd(), "ncclGroupEnd"));
  return s;
}

// --- From launching to the end -----------------------------------------------

bool CollectiveRuns::PollLaunching() {
  if (!launching_) return false;
  const absl::StatusOr<bool> ready = launching_->part->Ready();
  if (!ready.ok()) {
    error_.Update(ready.status());
    return true;
  }
  if (!*ready) return false;
  const Launching l = *std::move(launching_);
  launching_.reset();
  EnqueueAfter(l);
  return true;
}

void CollectiveRuns::EnqueueAfter(const Launching& l) {
  for (size_t i = 0; i < l.steps.size(); ++i) {
    GpuQueue& queue = QueueOf(l, i);
    queue.EndLaunch();
    absl::Status s;
    for (const CollectiveSteps& steps : l.steps[i]) {
      s = steps.EnqueueAfter(queue);
      if (!s.ok()) break;
    }
    EndPart(l, i, s);
  }
}

void CollectiveRuns::EndPart(const Launching& l, size_t i,
                             const absl::Status& status) {
  GpuQueue& queue = QueueOf(l, i);
  if (!queue.in_batch()) return OnPartEnded(l.id, status, {});
  const absl::Status s =
      queue.Record([this, id = l.id, status](absl::Status of_gpu) {
        OnPartEnded(id, status, of_gpu);
      });
  if (!s.ok()) OnPartEnded(l.id, status, s);
}

void CollectiveRuns::OnPartEnded(uint64_t id, const absl::Status& status,
                                 const absl::Status& of_gpu) {
  const auto it = running_.find(id);
  if (--it->second.gpus == 0) running_.erase(it);
  // Other GPUs may wait for this one for ever.
  error_.Update(of_gpu);
  absl::Status s = status;
  s.Update(of_gpu);
  ends_.PartEnded(id, s);
}

bool CollectiveRuns::PollRunning() {
  const CommunicatorPart* last = nullptr;
  for (const auto& [id, running] : running_) {
    if (running.part == std::exchange(last, running.part)) continue;
    const absl::StatusOr<bool> ready = running.part->Ready();
    if (ready.ok()) continue;
    error_.Update(ready.status());
    return true;
  }
  return false;
}

// --- Abort -------------------------------------------------------------------

void CollectiveRuns::Abort(const absl::Status& why) {
  aborted_ = true;
  wants_room_ = false;
  const std::deque<GpuRun> waiting = std::exchange(waiting_, {});
  for (const GpuRun& run : waiting) ends_.Refuse(run, why);
}

void CollectiveRuns::NoteGone() {
  if (!launching_) return;
  const Launching l = *std::move(launching_);
  launching_.reset();
  for (size_t i = 0; i < l.steps.size(); ++i) {
    QueueOf(l, i).EndLaunch();
    EndPart(l, i, {});
  }
}

}  // namespace maypole::worker
