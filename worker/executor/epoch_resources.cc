#include "worker/executor/epoch_resources.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "common/absl_status.h"

namespace maypole::worker {

void EpochResources::WakeRanks() {
  if (keeper_ != nullptr) keeper_->board().WakeRanks();
}

// --- Network ---------------------------------------------------------------

void EpochResources::Do(PrepareBackend& a) {
  network_.reset();
  const LoopPoster::Post post = network_poster_.Renew();
  EpochNetwork::Callbacks callbacks;
  callbacks.on_prepared =
      [this, post](absl::StatusOr<std::vector<std::string>> addresses) {
        post([this, addresses] { core_.OnBackendPrepared(addresses); });
      };
  callbacks.on_connected = [this, post](absl::Status s) {
    post([this, s] { core_.OnBackendConnected(s); });
  };
  callbacks.on_failed = [this, post](absl::Status s) {
    post([this, s] {
      if (core_.OnNetworkFailed(s)) observer_.OnNetworkFailed(s);
    });
  };
  callbacks.runner.on_done = [this, post](const RunSpec& run) {
    if (timeline_.recording()) {
      post([this, record = run.record, now = system_.NowNs()] {
        timeline_.OnRunDone(record, now);
      });
    }
    if (run.site != RunSite::kExecutors) observer_.OnRunDone(run);
  };
  callbacks.runner.on_free = [this, post](uint32_t record) {
    post([this, record] { core_.OnRunFree(record); });
  };
  network_ = system_.MakeNetwork(a, std::move(callbacks));
  network_->Prepare(a.node_index, static_cast<uint32_t>(a.node_names.size()));
}

void EpochResources::Do(ConnectBackend& a) {
  if (network_ != nullptr) network_->Connect(std::move(a.addresses));
}

void EpochResources::Do(SendToPeers& a) {
  if (network_ == nullptr) return;
  if (!a.operations.empty() && keeper_ != nullptr) {
    *a.message.mutable_inputs() = keeper_->ReducedCopies(a.operations);
    observer_.OnInputsSent(a.message.inputs().size(), a.nodes.size());
  }
  network_->SendToPeers(a.nodes, a.message);
}

void EpochResources::TakePeerMessages() {
  if (network_ == nullptr) return;
  for (const auto& [node, message] : network_->TakePeerMessages()) {
    core_.OnPeerMessage(node, message);
  }
}

// --- Board -----------------------------------------------------------------

absl::Status EpochResources::MakeBoard(const CreateBoard& a) {
  std::unique_ptr<Board> board;
  const Status s = system_.CreateBoard(a.config, a.version, &board);
  if (!s.ok()) return ToAbsl(s);
  keeper_ = std::make_unique<BoardKeeper>(std::move(board));
  wake_ = system_.MakeBoardWake();
  for (uint32_t i = 0; i < a.pids.size(); ++i) {
    keeper_->MarkPresent(i, a.pids[i]);
  }
  if (network_ != nullptr) network_->Start(&keeper_->board());
  observer_.OnEpochStarted(a.config, keeper_->board());
  observer_.OnBoardBytes(keeper_->bytes());
  return absl::OkStatus();
}

void EpochResources::Do(AllotSlot& a) {
  if (keeper_ == nullptr) return;
  if (const Status s = keeper_->Allot(a); !s.ok()) {
    core_.OnBoardFull(ToAbsl(s));
    // Execute the abort before later actions that assume the slot to exist;
    // after an abort they have no effect.
    do_actions_();
    return;
  }
  observer_.OnBoardBytes(keeper_->bytes());
}

void EpochResources::Do(FindIdleSlots&) {
  if (keeper_ != nullptr) core_.OnIdleSlots(keeper_->IdleSlots());
}

void EpochResources::Do(FreeSlot& a) {
  if (!IsAllotted(a.slot)) return;
  core_.OnSlotFreed(a.slot, keeper_->Free(a.slot));
}

void EpochResources::Do(WantSlot& a) {
  if (!IsAllotted(a.slot)) return;
  keeper_->board().Want(a.slot, a.generation, a.signature);
}

void EpochResources::Do(WantCopies& a) {
  if (!IsAllotted(a.slot)) return;
  keeper_->board().slot(a.slot).wants_copies.store(a.wanted ? 1 : 0,
                                                   std::memory_order_relaxed);
}

void EpochResources::Do(IssueRun& a) {
  // After an abort no ticket may be queued.
  const bool by_ranks = a.run.site == RunSite::kRanks;
  if (keeper_ == nullptr || keeper_->board().aborted() ||
      (!by_ranks && network_ == nullptr)) {
    return;
  }
  a.run.issued_ns = system_.NowNs();
  // Operations within the node are counted by the ranks.
  if (a.run.site != RunSite::kExecutors && a.run.nodes.size() > 1) {
    observer_.OnIssued(a.run);
  }
  if (timeline_.recording()) RecordIssued(a.run);
  keeper_->WritePlan(a.run);
  if (!by_ranks) network_->Add(a.run);
  for (const PlanOperation& op : a.run.operations) {
    if (by_ranks) MarkOnGpus(op.slot, op.generation);
  }
  keeper_->Issue(a.run);
}

void EpochResources::RecordIssued(const RunSpec& run) {
  std::vector<std::string> names;
  for (const PlanOperation& op : run.operations) {
    names.push_back(keeper_->IsAllotted(op.slot) ? keeper_->NameOf(op.slot)
                                                 : "");
  }
  timeline_.OnIssued(run, names);
}

void EpochResources::Do(FinishSmall& a) {
  if (keeper_ == nullptr || keeper_->board().aborted()) return;
  keeper_->Finish(a);
  observer_.OnSmallFinished(a);
}

void EpochResources::Do(RunOnHost& a) {
  if (!IsAllotted(a.slot)) return;
  keeper_->Issue(a.slot, a.generation);
}

void EpochResources::Do(CommitSlot& a) {
  if (!IsAllotted(a.slot)) return;
  keeper_->Commit(a.slot, a.generation);
}

void EpochResources::Do(FailSlot& a) {
  if (!IsAllotted(a.slot)) return;
  observer_.OnOperationFailed(a, keeper_->NameOf(a.slot));
  keeper_->board().Fail(a.slot, a.generation, a.code, a.text);
}

void EpochResources::Do(MarkLeft& a) {
  if (keeper_ == nullptr) return;
  observer_.OnRankLeft(a);
  keeper_->MarkLeft(a);
}

void EpochResources::Do(MarkGone& a) {
  if (keeper_ == nullptr) return;
  keeper_->MarkGone(static_cast<uint32_t>(a.local_rank));
}

void EpochResources::Do(WantChange& a) {
  observer_.OnChangeWanted(a.ranks);
  if (keeper_ == nullptr) return;
  keeper_->board().header().change_wanted.store(a.ranks,
                                                std::memory_order_release);
}

void EpochResources::Do(AbortBoard& a) {
  observer_.OnEpochAborted(a);
  if (keeper_ != nullptr) keeper_->board().Abort(a.code, a.text);
  if (network_ != nullptr) network_->Abort();
  if (gpus_ != nullptr) gpus_->Abort();
}

// --- GPUs ------------------------------------------------------------------

void EpochResources::Open(const OpenGpuMemory& a, Fd memory) {
  if (keeper_ == nullptr) return;
  MakeGpus();
  gpus_->Open(a.id, a.request, std::move(memory));
}

void EpochResources::MakeGpus() {
  if (gpus_ != nullptr) return;
  const LoopPoster::Post post = gpus_poster_.Renew();
  EpochGpus::Callbacks callbacks;
  callbacks.on_opened = [this, post](GpuMemoryId id,
                                     StatusOr<OpenedGpuMemory> opened) {
    post([this, id, opened] { core_.OnGpuMemoryOpened(id, ToAbsl(opened)); });
  };
  callbacks.on_ended = [this, post](const GpuRun& run, Status s) {
    post([this, run, s] {
      EndGpuRun();
      observer_.OnGpuRunEnded(run);
      core_.OnGpuRunEnded(run, ToAbsl(s));
    });
  };
  callbacks.on_communicator_id = [this, post](uint32_t number,
                                              StatusOr<std::string> id) {
    post(
        [this, number, id] { core_.OnCommunicatorIdMade(number, ToAbsl(id)); });
  };
  // May come after the epoch is over, or after the loop has ended.
  callbacks.on_abort_stuck = [system = &system_](std::string reason) {
    system->EndProcess(reason);
  };
  gpus_ = system_.MakeGpus(std::move(callbacks));
}

void EpochResources::Do(CloseGpuMemories& a) {
  if (gpus_ != nullptr) gpus_->Close(a.local);
}

void EpochResources::Do(MakeCommunicatorId& a) {
  if (keeper_ == nullptr) return;
  MakeGpus();
  gpus_->MakeCommunicatorId(a.number);
}

void EpochResources::Do(ConnectGpus& a) {
  if (gpus_ == nullptr) return;
  gpus_->Connect(std::move(a.communicator), std::move(a.id));
}

// Ranks that have seen an abort do not wait for a run that has not begun. This
// fence pairs with that of ProgressEngine::GpuIsIdle(): either this thread sees
// the abort, or the rank sees the run.
void EpochResources::Do(RunOnGpus& a) {
  if (keeper_ == nullptr || gpus_ == nullptr) return;
  keeper_->board().header().gpu_runs.fetch_add(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (keeper_->board().aborted()) return EndGpuRun();
  for (const GpuOperation& op : a.run.operations) {
    MarkOnGpus(op.slot, op.generation);
  }
  gpus_->Run(std::move(a.run));
}

void EpochResources::MarkOnGpus(uint32_t slot, uint32_t generation) {
  keeper_->board().slot(slot).on_gpus.store(Tagged(generation, 1),
                                            std::memory_order_relaxed);
}

void EpochResources::EndGpuRun() {
  if (keeper_ == nullptr) return;
  const Board& board = keeper_->board();
  if (board.header().gpu_runs.fetch_sub(1) == 1 && board.aborted()) {
    board.WakeRanks();
  }
}

// --- The end -----------------------------------------------------------------

void EpochResources::Drop() {
  network_poster_.Cancel();
  network_.reset();
  gpus_poster_.Cancel();
  gpus_.reset();
  if (keeper_ != nullptr) {
    keeper_->board().header().gpu_runs.store(0);
    keeper_->board().WakeRanks();
  }
  keeper_.reset();
  wake_.reset();
}

}  // namespace maypole::worker
