// ExecutorLogic: actions that concern GPUs.
#include <atomic>
#include <utility>

#include "common/absl_status.h"
#include "worker/executor/executor_logic.h"

namespace maypole::worker {

void ExecutorLogic::Do(OpenGpuMemory& a) {
  if (keeper_ == nullptr) return;
  MakeGpus();
  gpus_->Open(a.id, a.request, std::move(descriptor_));
}

void ExecutorLogic::MakeGpus() {
  if (gpus_ != nullptr) return;
  ++gpus_number_;
  const auto post = PosterFor(&gpus_number_);
  EpochGpus::Callbacks callbacks;
  callbacks.on_opened = [this, post](GpuMemoryId id,
                                     StatusOr<OpenedGpuMemory> opened) {
    post([this, id, opened] { core_.OnGpuMemoryOpened(id, ToAbsl(opened)); });
  };
  callbacks.on_ended = [this, post](const GpuRun& run, Status s) {
    post([this, run, s] {
      EndGpuRun();
      observer_->OnGpuRunEnded(run);
      core_.OnGpuRunEnded(run, ToAbsl(s));
    });
  };
  callbacks.on_communicator_id = [this, post](uint32_t number,
                                              StatusOr<std::string> id) {
    post(
        [this, number, id] { core_.OnCommunicatorIdMade(number, ToAbsl(id)); });
  };
  // Also of GPUs of an epoch that is over, and when the loop has ended.
  callbacks.on_abort_stuck = [system = system_](std::string reason) {
    system->EndProcess(reason);
  };
  gpus_ = system_->MakeGpus(std::move(callbacks));
}

void ExecutorLogic::Do(CloseGpuMemories& a) {
  if (gpus_ != nullptr) gpus_->Close(a.local);
}

void ExecutorLogic::Do(MakeCommunicatorId& a) {
  if (keeper_ == nullptr) return;
  MakeGpus();
  gpus_->MakeCommunicatorId(a.number);
}

void ExecutorLogic::Do(ConnectGpus& a) {
  if (gpus_ == nullptr) return;
  gpus_->Connect(std::move(a.communicator), std::move(a.id));
}

// Ranks that have seen an abort do not wait for a run that has not begun. The
// fence and that of ProgressEngine::GpuIsIdle(): either the abort is seen here,
// or the run there.
void ExecutorLogic::Do(RunOnGpus& a) {
  if (keeper_ == nullptr || gpus_ == nullptr) return;
  keeper_->board().header().gpu_runs.fetch_add(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (keeper_->board().aborted()) return EndGpuRun();
  for (const GpuOperation& op : a.run.operations) {
    MarkOnGpus(op.slot, op.generation);
  }
  gpus_->Run(std::move(a.run));
}

void ExecutorLogic::MarkOnGpus(uint32_t slot, uint32_t generation) {
  keeper_->board().slot(slot).on_gpus.store(Tagged(generation, 1),
                                            std::memory_order_relaxed);
}

void ExecutorLogic::EndGpuRun() {
  if (keeper_ == nullptr) return;
  const Board& board = keeper_->board();
  if (board.header().gpu_runs.fetch_sub(1) == 1 && board.aborted()) {
    board.WakeRanks();
  }
}

void ExecutorLogic::Do(RunOnHost& a) {
  if (keeper_ == nullptr || !keeper_->IsAllotted(a.slot)) return;
  keeper_->Issue(a.slot, a.generation);
}

void ExecutorLogic::Do(CommitSlot& a) {
  if (keeper_ == nullptr || !keeper_->IsAllotted(a.slot)) return;
  keeper_->Commit(a.slot, a.generation);
}

void ExecutorLogic::DropGpus() {
  ++gpus_number_;
  gpus_.reset();
  if (keeper_ == nullptr) return;
  keeper_->board().header().gpu_runs.store(0);
  keeper_->board().WakeRanks();
}

}  // namespace maypole::worker
