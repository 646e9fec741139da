// EpochResources: the board, the network and the GPUs of the epoch that starts
// or runs.
//
// Purpose: makes them, executes the core's actions on them, passes their events
// to the core, and drops them in an order in which none of their threads finds
// the board gone.
//
// Thread contract: the executor's loop.
#ifndef MAYPOLE_WORKER_EXECUTOR_EPOCH_RESOURCES_H_
#define MAYPOLE_WORKER_EXECUTOR_EPOCH_RESOURCES_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/gpu/runner/epoch_gpus.h"
#include "common/system/fd.h"
#include "worker/core/executor_core.h"
#include "worker/core/timeline/executor_timeline.h"
#include "worker/executor/board/board_keeper.h"
#include "worker/executor/executor_system.h"
#include "worker/executor/loop_poster.h"

namespace maypole::worker {

class EpochResources {
 public:
  // All must outlive this object. do_actions: executes the core's actions.
  EpochResources(ExecutorSystem* system, ExecutorObserver* observer,
                 ExecutorCore* core, ExecutorTimeline* timeline,
                 std::function<void()> do_actions)
      : system_(*system),
        observer_(*observer),
        core_(*core),
        timeline_(*timeline),
        do_actions_(std::move(do_actions)),
        network_poster_(system),
        gpus_poster_(system) {}

  // Null if there is no board.
  BoardKeeper* keeper() { return keeper_.get(); }
  const BoardKeeper* keeper() const { return keeper_.get(); }
  BoardWake* wake() { return wake_.get(); }  // with the board
  const EpochNetwork* network() const { return network_.get(); }
  // Makes sleeping ranks read their sockets: a rank that sleeps on the board
  // does not watch its socket.
  void WakeRanks();
  void TakePeerMessages();

  absl::Status MakeBoard(const CreateBoard& a);
  // `memory`: the descriptor that came with the request.
  void Open(const OpenGpuMemory& a, Fd memory);
  void Drop();

  void Do(PrepareBackend& a);
  void Do(ConnectBackend& a);
  void Do(AllotSlot& a);
  void Do(FindIdleSlots& a);
  void Do(FreeSlot& a);
  void Do(WantSlot& a);
  void Do(WantCopies& a);
  void Do(IssueRun& a);
  void Do(SendToPeers& a);
  void Do(FinishSmall& a);
  void Do(RunOnHost& a);
  void Do(CommitSlot& a);
  void Do(FailSlot& a);
  void Do(MarkLeft& a);
  void Do(MarkGone& a);
  void Do(WantChange& a);
  void Do(AbortBoard& a);
  void Do(CloseGpuMemories& a);
  void Do(MakeCommunicatorId& a);
  void Do(ConnectGpus& a);
  void Do(RunOnGpus& a);

 private:
  bool IsAllotted(uint32_t slot) const {
    return keeper_ != nullptr && keeper_->IsAllotted(slot);
  }
  void RecordIssued(const RunSpec& run);
  void MakeGpus();
  void MarkOnGpus(uint32_t slot, uint32_t generation);
  void EndGpuRun();

  ExecutorSystem& system_;
  ExecutorObserver& observer_;
  ExecutorCore& core_;
  ExecutorTimeline& timeline_;
  const std::function<void()> do_actions_;
  LoopPoster network_poster_;
  LoopPoster gpus_poster_;
  std::unique_ptr<BoardWake> wake_;
  std::unique_ptr<BoardKeeper> keeper_;
  // Declared last, because their threads call back and read the board.
  std::unique_ptr<EpochGpus> gpus_;
  std::unique_ptr<EpochNetwork> network_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_EPOCH_RESOURCES_H_
