// Run: one operation or several fused ones, which a progress engine executes
// together.
//
// A run has a byte space, cut into chunks: its operations one after the other
// (at offsets that are multiples of 64), an allgather's output, or all ranks'
// inputs of an alltoall.
//
// Thread contract: values; only the driver thread uses them.
#ifndef MAYPOLE_CLIENT_ENGINE_RUN_H_
#define MAYPOLE_CLIENT_ENGINE_RUN_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/engine/operation.h"
#include "client/engine/store_choice.h"
#include "common/board/board.h"

namespace maypole {

// A range of the run's space that belongs to one operation.
struct Part {
  Operation* operation;
  uint64_t begin;
  uint64_t end;
  // In an arena run: the tensor of each local rank of the process set.
  std::vector<std::byte*> tensors = {};
};

// A range of a gathering run's space that one rank stages; local -1: a rank of
// another node.
struct StagedBlock {
  int local;
  uint64_t begin;
  uint64_t end;
};

// A range of the run's result that this rank wants, and where it goes.
struct ResultPiece {
  uint64_t begin;
  uint64_t end;
  std::byte* to;
};

struct Run {
  RunRef ref = 0;
  uint32_t generation = 0;
  bool negotiated = false;  // spans nodes; the executor takes part
  bool arena = false;       // all ranks have all its tensors in their arenas
  bool left = false;        // aborted; this rank no longer writes to it
  Store store = Store::kCached;  // how this rank stages
  bool measured = false;         // StoreChoice wants to know how long it takes
  int64_t all_began = 0;         // when all had staged chunk 0, nanoseconds
  bool on_gpu = false;  // this rank's input must still be brought to the host
  // RunSite::kRanks only: this rank's part, and when it was first seen to have
  // failed, in nanoseconds.
  std::shared_ptr<RankRun> on_rank;
  int64_t failed_at = 0;
  bool ended = false;   // this rank's part is on its GPU's stream
  bool broken = false;  // this rank cannot take part; an abort will end it
  RunSite site = RunSite::kHost;
  uint32_t communicator = 0;  // RunSite::kRanks
  Signature signature;
  std::shared_ptr<const ProcessSet> set;
  uint32_t place = 0;       // this rank's index among the set's local ranks
  std::vector<Part> parts;  // ordered by begin
  std::vector<StagedBlock> blocks;  // gathering kinds only; ordered by begin
  std::vector<ResultPiece> pieces;  // ordered by begin
  uint64_t bytes = 0;
  uint32_t chunk_bytes = 0;
  uint32_t chunks = 0;
  // Chunks to which this rank contributes: [stage_begin, stage_end).
  uint32_t stage_begin = 0;
  uint32_t stage_end = 0;
  uint32_t staged = 0;    // next chunk to stage; begins at stage_begin
  uint32_t reduced = 0;   // next chunk to reduce
  uint32_t consumed = 0;  // next chunk to consume

  Range chunk(uint32_t c) const { return ChunkRange(bytes, chunk_bytes, c); }
  bool reduces() const { return Reduces(signature.kind); }
  bool uses_own_ring() const { return reduces() || !negotiated; }
};

inline Range Overlap(const Range& a, uint64_t begin, uint64_t end) {
  const uint64_t b = std::max(a.begin, begin);
  return {b, std::max(b, std::min(a.end, end))};
}

// Fills in the fields from `signature` on (and `arena`); the caller has set
// ref, generation, negotiated, parts and bytes. Allocates the result of an
// allgather or alltoall; kResourceExhausted if that fails.
Status LayOut(const Board& board, uint32_t me, Run& run);

// Sets the pieces of a run that is not gathering. LayOut() does so too, but
// before inputs and outputs are brought from a GPU to the host.
void FindPieces(const Board& board, uint32_t me, Run& run);

// The local rank of a global rank; -1 if it is on another node.
int LocalRankOf(const BoardConfig& config, int32_t rank);

// Each rank's first dimension in an operation within the node, by global rank;
// 0 for ranks outside its process set.
std::vector<int64_t> LocalFirstDims(const Board& board, const Operation& op);

// How many rows each rank of an alltoall within the node sends to each rank:
// an n x n matrix with one line per sender, for a process set of n ranks.
std::vector<int64_t> LocalSplits(const Board& board, const Operation& op);

// Sets the sizes of the result of an allgather or alltoall that GPUs execute.
// The caller has set the same fields as for LayOut(). Returns the members'
// rows, as for ResultsHaveRoom() (common/gather_room.h).
std::vector<int64_t> SizeResult(const Board& board, uint32_t me, Run& run);

// Offset from an operation's place to its result, if it ran on GPUs.
uint64_t ResultAt(const BoardConfig& config, uint32_t me,
                  const Operation& operation);

// Allocates the result of an allgather or alltoall; `rows` is the number of
// rows from each rank. Does nothing for an operation that stands in.
Status AllocateGathered(const std::vector<int64_t>& rows, Operation* operation);

// The bytes of a reducescatter's result that this rank gets.
Range ScatteredBytes(const BoardConfig& config, uint32_t me,
                     const Operation& operation);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_RUN_H_
