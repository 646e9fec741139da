// Run: what a progress engine works on, one operation or several fused ones.
//
// A run has a byte space: its operations one after the other (offsets multiples
// of 64), or an allgather's output. The space is cut in chunks.
//
// Thread contract: values of the thread that drives the progress engine.
#ifndef MAYPOLE_CLIENT_ENGINE_RUN_H_
#define MAYPOLE_CLIENT_ENGINE_RUN_H_

#include <algorithm>
#include <cstdint>
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
  // In an arena run: the tensor of each local member.
  std::vector<std::byte*> tensors = {};
};

// A range of a gathering run's space that one rank stages; local -1: a rank of
// another node.
struct StagedBlock {
  int local;
  uint64_t begin;
  uint64_t end;
};

// A range of the run's result that this rank wants, and where to.
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
  bool left = false;        // an abort has come; this rank writes no more
  Store store = Store::kCached;  // of what this rank stages
  bool measured = false;         // StoreChoice wants to know how long it takes
  int64_t all_began = 0;         // when all had staged chunk 0, nanoseconds
  bool broken = false;  // this rank cannot take part; an abort will end it
  Signature signature;
  std::shared_ptr<const ProcessSet> set;
  uint32_t place = 0;       // of this rank among the set's local members
  std::vector<Part> parts;  // by begin
  std::vector<StagedBlock> blocks;  // gathering kinds only, by begin
  std::vector<ResultPiece> pieces;  // by begin
  uint64_t bytes = 0;
  uint32_t chunk_bytes = 0;
  uint32_t chunks = 0;
  // Chunks to which this rank contributes: [stage_begin, stage_end).
  uint32_t stage_begin = 0;
  uint32_t stage_end = 0;
  uint32_t staged = 0;  // next chunk to stage, from stage_begin on
  uint32_t reduced = 0;
  uint32_t consumed = 0;

  Range chunk(uint32_t c) const { return ChunkRange(bytes, chunk_bytes, c); }
  bool reduces() const { return Reduces(signature.kind); }
  bool uses_own_ring() const { return reduces() || !negotiated; }
};

inline Range Overlap(const Range& a, uint64_t begin, uint64_t end) {
  const uint64_t b = std::max(a.begin, begin);
  return {b, std::max(b, std::min(a.end, end))};
}

// Fills in all from `signature` on, given ref, generation, negotiated, parts
// and (fused runs) bytes. Allocates an allgather's or alltoall's result;
// kResourceExhausted if that fails.
Status LayOut(const Board& board, uint32_t me, Run& run);

// -1: a rank of another node.
int LocalRankOf(const BoardConfig& config, int32_t rank);

// First dimensions of an operation within the node, by global rank; 0 of ranks
// outside its process set.
std::vector<int64_t> LocalFirstDims(const Board& board, const Operation& op);

// What each rank of an alltoall within the node sends to each: a row for each
// rank of the process set.
std::vector<int64_t> LocalSplits(const Board& board, const Operation& op);

// Memory for the result of an allgather (the ranks' first dimensions) or an
// alltoall (rows from each rank). Nothing if nobody wants it.
Status AllocateGathered(const std::vector<int64_t>& rows, Operation* operation);

// Rows of a reducescatter's result that this rank gets.
Range ScatteredBytes(const BoardConfig& config, uint32_t me,
                     const Operation& operation);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_RUN_H_
