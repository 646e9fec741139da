// ChunkMover: moves the chunks of a rank's runs through the board.
//
// Purpose: for each chunk of a run, stages what other ranks need, reduces this
// rank's slice, and delivers the result to this rank's private memory. No other
// rank touches that memory, except arena tensors (client/memory/arena.h): there
// each rank reduces its slice in place in all ranks' tensors.
//
//   stage(c)    needs a free entry of this rank's ring: every local rank has
//               consumed the chunk that was there before. Copies the slices
//               that others own (all slices if there is a prescale factor).
//   reduce(c)   needs stage(c) of every local rank and, if the run spans nodes,
//               a granted entry of the node ring. The result goes to this
//               rank's output and over the next rank's staged copy of the
//               slice, or to the node ring.
//   consume(c)  needs reduce(c) of every local rank or, across nodes, the
//               network's result. Copies the chunk to the output.
// Gathering kinds (broadcast, allgather, alltoall) have no reduce step: the
// owners of a chunk's bytes stage them, and all ranks consume the chunk when
// the owners have staged it. "Every local rank" means those in the run's
// process set.
//
// Thread contract: not synchronized; only the progress engine calls it. Nothing
// waits.
//
// Invariants: a rank consumes a run's last chunk only after it has committed
// the run (Board::Decide). Ring entries are taken in the order of calls.
#ifndef MAYPOLE_CLIENT_ENGINE_CHUNK_MOVER_H_
#define MAYPOLE_CLIENT_ENGINE_CHUNK_MOVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "client/engine/run.h"
#include "common/board/board.h"
#include "common/reduce/reduce.h"

namespace maypole {

class ChunkMover {
 public:
  // A step moves only about this much, because the driver thread checks its
  // clock between steps.
  static constexpr uint64_t kStepBytes = 8 << 20;

  // now: a steady clock, in nanoseconds.
  ChunkMover(const Board* board, uint32_t local_rank,
             std::function<int64_t()> now)
      : board_(board),
        me_(local_rank),
        depth_(board->config().ring_depth),
        now_(std::move(now)),
        places_(depth_) {}

  void BeginStep() { moved_bytes_ = 0; }
  // Counts bytes that another class moved in this step.
  void CountMoved(uint64_t bytes) { moved_bytes_ += bytes; }
  // False if this step has moved kStepBytes.
  bool may_move() const { return moved_bytes_ < kStepBytes; }

  // Moves what can be moved now; false if there was nothing. may_stage: all
  // earlier runs have staged their chunks.
  bool Move(Run& run, bool may_stage);

  // Publishes how far this rank has staged. Chunks to which it contributes
  // nothing count as staged.
  void PublishStaged(const Run& run);
  // Publishes that this rank no longer reads or writes anything of the run.
  void PublishLeft(const Run& run) {
    Publish(board_->progress(run.ref, me_).consumed, run, UINT32_MAX);
  }

 private:
  // The chunk in an entry of this rank's ring.
  struct Occupant {
    RunRef ref = 0;
    uint32_t generation = 0;
    uint32_t chunk = 0;
    uint64_t members = 0;
  };

  bool TryStage(Run& run);
  bool TryReduce(Run& run);
  bool TryConsume(Run& run);

  bool PlaceIsFree(uint32_t index) const;
  bool ResultReady(const Run& run, uint32_t chunk) const;
  bool AllStaged(const Run& run, uint32_t chunk) const;
  bool OwnersStaged(const Run& run, const Range& chunk) const;
  std::byte* StagedChunk(const Run& run, uint32_t local, uint32_t chunk) const;
  uint32_t HolderOf(const Run& run, uint32_t slice) const;
  std::byte* NodeChunk(const Run& run, uint32_t chunk) const;
  void StageReduction(const Run& run, const Range& chunk, std::byte* place);
  void StageGathered(const Run& run, const Range& chunk, std::byte* place);
  void ReduceInArena(const Run& run, const Range& chunk, uint32_t number);
  void ReduceSlice(const Run& run, const Range& chunk, uint32_t number);
  void DeliverReduced(const Run& run, const Range& chunk, uint32_t number);
  // for_network: if the run spans nodes, the executor waits for this too.
  void Publish(std::atomic<uint64_t>& word, const Run& run, uint32_t count,
               bool for_network = true);

  const Board* const board_;
  const uint32_t me_;
  const uint32_t depth_;
  const std::function<int64_t()> now_;
  std::vector<Occupant> places_;
  uint64_t next_place_ = 0;
  uint64_t moved_bytes_ = 0;  // in this step
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_CHUNK_MOVER_H_
