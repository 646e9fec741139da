#include "common/gpu/runner/nccl/collective_runs.h"

#include <algorithm>
#include <utility>

#include "common/gpu/runner/check_operation.h"
#include "common/types.h"

namespace maypole {
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

StatusOr<CollectiveRuns::Steps> CollectiveRuns::StepsOf(
    const GpuRun& run, const GpuCommunicator& communicator) const {
  Steps steps(communicator.gpus.size());
  for (const GpuOperation& operation : run.operations) {
    if (Status s = CheckOperation(operation); !s.ok()) return s;
    StatusOr<std::vector<CollectiveSteps>> made =
        MakeSteps(operation, communicator, memories_);
    if (!made.ok()) return made.status();
    for (size_t i = 0; i < steps.size(); ++i) {
      steps[i].push_back(std::move((*made)[i]));
    }
  }
  return steps;
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
  const StatusOr<CommunicatorPart*> part = communicators_.Find(number);
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
  StatusOr<Steps> steps = StepsOf(run, (*part)->communicator());
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
  const Status before = EnqueueBefore(l);
  const Status s = before.ok() ? Launch(l) : before;
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

Status CollectiveRuns::EnqueueBefore(const Launching& l) {
  for (size_t i = 0; i < l.steps.size(); ++i) {
    for (const CollectiveSteps& steps : l.steps[i]) {
      const Status s = steps.EnqueueBefore(QueueOf(l, i));
      if (!s.ok()) return s;
    }
  }
  return {};
}

Status CollectiveRuns::Launch(const Launching& l) {
  const nccl::Nccl& nccl = l.part->nccl();
  // Otherwise NCCL, which restores the context that it found, would create one
  // on GPU 0.
  const cuda::CurrentGpu current(l.part->at(0).gpu());
  if (Status s = current.status(); !s.ok()) return s;
  Status s = l.part->at(0).Check(nccl.ncclGroupStart(), "ncclGroupStart");
  if (!s.ok()) return s;
  for (size_t i = 0; i < l.steps.size(); ++i) {
    size_t calls = 0;
    for (const CollectiveSteps& steps : l.steps[i]) {
      calls += steps.calls.size();
    }
    if (calls == 0) continue;  // an alltoall that does not concern the GPU
    s.Update(QueueOf(l, i).Collective(calls, [&](cuda::CUstream stream) {
      Status all;
      for (const CollectiveSteps& steps : l.steps[i]) {
        for (const NcclCall& call : steps.calls) {
          all.Update(Make(call, nccl, l.part->at(i), stream));
        }
      }
      return all;
    }));
  }
  s.Update(l.part->at(0).Check(nccl.ncclGroupEnd(), "ncclGroupEnd"));
  return s;
}

// --- From launching to the end -----------------------------------------------

bool CollectiveRuns::PollLaunching() {
  if (!launching_) return false;
  const StatusOr<bool> ready = launching_->part->Ready();
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
  Status all;
  for (size_t i = 0; i < l.steps.size(); ++i) {
    GpuQueue& queue = QueueOf(l, i);
    queue.EndLaunch();
    Status s;
    for (const CollectiveSteps& steps : l.steps[i]) {
      s = steps.EnqueueAfter(queue);
      if (!s.ok()) break;
    }
    all.Update(s);
    EndPart(l, i, s);
  }
  if (all.ok()) ends_.Enqueued(l.id);
}

void CollectiveRuns::EndPart(const Launching& l, size_t i,
                             const Status& status) {
  GpuQueue& queue = QueueOf(l, i);
  if (!queue.in_batch() && !status.ok()) return OnPartEnded(l.id, status, {});
  const Status s = queue.Record([this, id = l.id, status](Status of_gpu) {
    OnPartEnded(id, status, of_gpu);
  });
  if (!s.ok()) OnPartEnded(l.id, status, s);
}

void CollectiveRuns::OnPartEnded(uint64_t id, const Status& status,
                                 const Status& of_gpu) {
  const auto it = running_.find(id);
  if (--it->second.gpus == 0) running_.erase(it);
  // Other GPUs may wait for this one forever.
  error_.Update(of_gpu);
  Status s = status;
  s.Update(of_gpu);
  ends_.PartEnded(id, s);
}

bool CollectiveRuns::PollRunning() {
  const CommunicatorPart* last = nullptr;
  for (const auto& [id, running] : running_) {
    if (running.part == std::exchange(last, running.part)) continue;
    const StatusOr<bool> ready = running.part->Ready();
    if (ready.ok()) continue;
    error_.Update(ready.status());
    return true;
  }
  return false;
}

// --- Abort -------------------------------------------------------------------

void CollectiveRuns::Abort(const Status& why) {
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

}  // namespace maypole
