// ExecutorLogic: actions that concern GPUs.
#include <utility>

#include "worker/executor/executor_logic.h"

namespace maypole::worker {

void ExecutorLogic::Do(OpenGpuMemory& a) {
  if (keeper_ == nullptr) return;
  if (gpus_ == nullptr) {
    ++gpus_number_;
    const auto post = PosterFor(&gpus_number_);
    EpochGpus::Callbacks callbacks;
    callbacks.on_opened = [this, post](GpuMemoryId id,
                                       absl::StatusOr<OpenedGpuMemory> opened) {
      post([this, id, opened] { core_.OnGpuMemoryOpened(id, opened); });
    };
    callbacks.on_reduced = [this, post](const GpuReduction& r, absl::Status s) {
      post([this, slot = r.slot, generation = r.generation, s] {
        EndGpuReduction();
        core_.OnGpuReduced(slot, generation, s);
      });
    };
    gpus_ = system_->MakeGpus(std::move(callbacks));
  }
  gpus_->Open(a.id, a.request, std::move(gpu_descriptor_));
}

void ExecutorLogic::Do(CloseGpuMemories& a) {
  if (gpus_ != nullptr) gpus_->Close(a.local);
}

// Ranks that have seen an abort do not wait for a reduction that has not begun.
void ExecutorLogic::Do(ReduceOnGpu& a) {
  if (keeper_ == nullptr || gpus_ == nullptr) return;
  keeper_->board().header().gpu_reductions.fetch_add(1);
  if (keeper_->board().aborted()) return EndGpuReduction();
  gpus_->Reduce(std::move(a.reduction));
}

void ExecutorLogic::EndGpuReduction() {
  if (keeper_ == nullptr) return;
  const Board& board = keeper_->board();
  if (board.header().gpu_reductions.fetch_sub(1) == 1 && board.aborted()) {
    board.WakeRanks();
  }
}

void ExecutorLogic::Do(CommitSlot& a) {
  if (keeper_ == nullptr || !keeper_->IsAllotted(a.slot)) return;
  keeper_->Commit(a.slot, a.generation);
}

void ExecutorLogic::DropGpus() {
  ++gpus_number_;
  gpus_.reset();
  if (keeper_ == nullptr) return;
  keeper_->board().header().gpu_reductions.store(0);
  keeper_->board().WakeRanks();
}

}  // namespace maypole::worker
