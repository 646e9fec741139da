#include "client/engine/chunk_mover.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "common/board/kill_point.h"
#include "common/reduce/copy.h"

namespace maypole {
namespace {

// Calls f(part, begin, end) for each piece of the range that belongs to a part;
// skips the gaps between parts.
template <typename F>
void ForParts(const Run& run, const Range& range, F&& f) {
  auto it = std::upper_bound(
      run.parts.begin(), run.parts.end(), range.begin,
      [](uint64_t at, const Part& part) { return at < part.end; });
  for (; it != run.parts.end() && it->begin < range.end; ++it) {
    const Range piece = Overlap(range, it->begin, it->end);
    if (piece.size() > 0) f(*it, piece.begin, piece.end);
  }
}

void Copy(std::byte* to, const std::byte* from, uint64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// True if a rank writes its reduced slice to its own output too.
bool WritesOutput(const Run& run) {
  return !run.negotiated && run.signature.kind == Kind::kAllreduce;
}

// What this node's ranks do to what they have reduced. Across nodes the
// executor does the rest (RunSpec::finish).
Epilogue EpilogueHere(const Run& run) {
  const Signature& s = run.signature;
  const Epilogue finish = EpilogueOf(s.op, s.postscale, run.set->size());
  return run.negotiated ? OverNodes(s.dtype, s.op, finish).on_node : finish;
}

// Copies a range of the run's result to where this rank wants it.
void Deliver(const Run& run, const Range& range, const std::byte* from) {
  auto it = std::upper_bound(
      run.pieces.begin(), run.pieces.end(), range.begin,
      [](uint64_t at, const ResultPiece& piece) { return at < piece.end; });
  for (; it != run.pieces.end() && it->begin < range.end; ++it) {
    const Range part = Overlap(range, it->begin, it->end);
    if (part.size() == 0) continue;
    Copy(it->to + (part.begin - it->begin), from + (part.begin - range.begin),
         part.size());
  }
}

}  // namespace

bool ChunkMover::Move(Run& run, bool may_stage) {
  bool moved = false;
  while (may_move() && TryConsume(run)) moved = true;
  while (run.reduces() && may_move() && TryReduce(run)) {
    moved = true;
    if (run.arena) break;  // its chunks never wait, so let other runs proceed
  }
  if (may_stage && may_move() && TryStage(run)) moved = true;
  return moved;
}

bool ChunkMover::PlaceIsFree(uint32_t index) const {
  const Occupant& o = places_[index];
  if (o.generation == 0) return true;
  for (uint32_t i = 0; i < board_->config().local_size; ++i) {
    if ((o.members >> i & 1) == 0) continue;
    const uint64_t word =
        board_->progress(o.ref, i).consumed.load(std::memory_order_acquire);
    if (CountAt(word, o.generation) <= o.chunk) return false;
  }
  return true;
}

bool ChunkMover::TryStage(Run& run) {
  if (run.staged == run.stage_end) return false;
  const uint32_t c = run.staged;
  Progress& progress = board_->progress(run.ref, me_);
  std::byte* place;
  if (run.uses_own_ring()) {
    const uint32_t index = static_cast<uint32_t>(next_place_ % depth_);
    if (!PlaceIsFree(index)) return false;
    if (c == run.stage_begin) {
      // Chunk c is at (base + c) % depth.
      progress.base.store(index + depth_ - c % depth_,
                          std::memory_order_relaxed);
    }
    MAYPOLE_KILL_POINT("stage.place");
    places_[index] = {run.ref, run.generation, c, run.set->mask()};
    ++next_place_;
    place = board_->rank_ring(me_, index);
  } else {
    const uint64_t granted =
        board_->run(run.ref).granted.load(std::memory_order_acquire);
    if (CountAt(granted, run.generation) <= c) return false;
    place = NodeChunk(run, c);
  }
  const Range chunk = run.chunk(c);
  if (run.reduces()) {
    StageReduction(run, chunk, place);
  } else {
    StageGathered(run, chunk, place);
  }
  MAYPOLE_KILL_POINT("stage.copied");
  moved_bytes_ += chunk.size();
  run.staged = c + 1;
  PublishStaged(run);
  MAYPOLE_KILL_POINT("stage.published");
  return true;
}

void ChunkMover::PublishStaged(const Run& run) {
  Publish(board_->progress(run.ref, me_).staged, run,
          run.staged == run.stage_end ? run.chunks : run.staged,
          /*for_network=*/!run.reduces());
}

void ChunkMover::StageReduction(const Run& run, const Range& chunk,
                                std::byte* place) {
  const size_t size = SizeOf(run.signature.dtype);
  const auto ranks = static_cast<uint32_t>(run.set->locals.size());
  for (uint32_t j = 0; j < ranks; ++j) {
    const Range slice = SliceRange(chunk.size(), ranks, j);
    ForParts(run, {chunk.begin + slice.begin, chunk.begin + slice.end},
             [&](const Part& part, uint64_t begin, uint64_t end) {
               const double prescale = part.operation->prescale();
               const std::byte* from =
                   part.operation->input + (begin - part.begin);
               std::byte* to = place + (begin - chunk.begin);
               if (prescale != 1.0) {
                 Scale(run.signature.dtype, from, to, (end - begin) / size,
                       prescale);
               } else if (j == run.place) {
                 return;  // ReduceSlice() reads it from private memory
               } else if (run.store == Store::kStreamed) {
                 CopyStreamed(to, from, end - begin);
               } else {
                 Copy(to, from, end - begin);
               }
             });
  }
}

void ChunkMover::StageGathered(const Run& run, const Range& chunk,
                               std::byte* place) {
  for (const StagedBlock& block : run.blocks) {
    if (block.local != static_cast<int>(me_)) continue;
    const Range mine = Overlap(chunk, block.begin, block.end);
    ForParts(run, mine, [&](const Part& part, uint64_t begin, uint64_t end) {
      // In a broadcast, the input covers the whole part; otherwise it covers
      // only the rank's own block.
      const uint64_t origin =
          run.signature.kind == Kind::kBroadcast ? part.begin : block.begin;
      Copy(place + (begin - chunk.begin),
           part.operation->input + (begin - origin), end - begin);
    });
  }
}

bool ChunkMover::AllStaged(const Run& run, uint32_t chunk) const {
  for (const uint32_t j : run.set->locals) {
    const uint64_t word =
        board_->progress(run.ref, j).staged.load(std::memory_order_acquire);
    if (CountAt(word, run.generation) <= chunk) return false;
  }
  return true;
}

bool ChunkMover::TryReduce(Run& run) {
  const uint32_t c = run.reduced;
  if (c == (run.arena ? run.chunks : run.staged)) return false;
  // After an abort, a peer that has not seen this run's ticket has ended the
  // operation, so we must not write to its tensor. A peer that has seen the
  // ticket waits for us (PeersHaveLeft). We have read the ticket before this
  // check.
  if (run.arena && board_->header().abort_code.load() != 0) return false;
  // Arena tensors need no staging: they are complete when their ranks arrive.
  if (!run.arena && !AllStaged(run, c)) return false;
  if (run.negotiated) {
    const uint64_t granted =
        board_->run(run.ref).granted.load(std::memory_order_acquire);
    if (CountAt(granted, run.generation) <= c) return false;
  }
  if (run.measured && c == 0) run.all_began = now_();
  MAYPOLE_KILL_POINT("reduce.ready");
  if (run.arena) {
    ReduceInArena(run, run.chunk(c), c);
  } else {
    ReduceSlice(run, run.chunk(c), c);
  }
  MAYPOLE_KILL_POINT("reduce.summed");
  moved_bytes_ += run.chunk(c).size();
  run.reduced = c + 1;
  Publish(board_->progress(run.ref, me_).reduced, run, run.reduced);
  MAYPOLE_KILL_POINT("reduce.published");
  return true;
}

// Reads and writes the tensors of all ranks in place.
void ChunkMover::ReduceInArena(const Run& run, const Range& chunk,
                               uint32_t number) {
  const size_t ranks = run.set->locals.size();
  const Range slice =
      SliceRange(chunk.size(), static_cast<uint32_t>(ranks), run.place);
  const size_t size = SizeOf(run.signature.dtype);
  std::vector<const std::byte*> inputs(ranks);
  std::vector<std::byte*> outputs(run.negotiated ? 1 : ranks);
  ForParts(run, {chunk.begin + slice.begin, chunk.begin + slice.end},
           [&](const Part& part, uint64_t begin, uint64_t end) {
             for (size_t j = 0; j < ranks; ++j) {
               inputs[j] = part.tensors[j] + (begin - part.begin);
             }
             if (run.negotiated) {
               outputs[0] = NodeChunk(run, number) + (begin - chunk.begin);
             } else {
               for (size_t j = 0; j < ranks; ++j) {
                 outputs[j] = part.tensors[j] + (begin - part.begin);
               }
             }
             ReduceTo(run.signature.dtype, run.signature.op, inputs, outputs,
                      (end - begin) / size, EpilogueHere(run));
           });
}

void ChunkMover::ReduceSlice(const Run& run, const Range& chunk,
                             uint32_t number) {
  const auto ranks = static_cast<uint32_t>(run.set->locals.size());
  std::byte* const to =
      run.negotiated ? NodeChunk(run, number)
                     : StagedChunk(run, HolderOf(run, run.place), number);
  const Epilogue finish = EpilogueHere(run);
  std::vector<const std::byte*> places(ranks);
  for (uint32_t j = 0; j < ranks; ++j) {
    places[j] = StagedChunk(run, run.set->locals[j], number);
  }
  const Range slice = SliceRange(chunk.size(), ranks, run.place);
  const size_t size = SizeOf(run.signature.dtype);
  std::vector<const std::byte*> inputs(ranks);
  ForParts(run, {chunk.begin + slice.begin, chunk.begin + slice.end},
           [&](const Part& part, uint64_t begin, uint64_t end) {
             const Operation& op = *part.operation;
             for (uint32_t j = 0; j < ranks; ++j) {
               inputs[j] = places[j] + (begin - chunk.begin);
             }
             if (op.prescale() == 1.0) {
               inputs[run.place] = op.input + (begin - part.begin);
             }
             // If this is the result of an allreduce within the node, writes it
             // to our own output too.
             const bool along = WritesOutput(run) && op.output != nullptr;
             std::byte* const outputs[] = {
                 to + (begin - chunk.begin),
                 along ? op.output + (begin - part.begin) : nullptr};
             ReduceTo(run.signature.dtype, run.signature.op, inputs,
                      std::span(outputs, along ? 2 : 1), (end - begin) / size,
                      finish);
           });
}

bool ChunkMover::OwnersStaged(const Run& run, const Range& chunk) const {
  for (const StagedBlock& block : run.blocks) {
    if (block.local < 0) continue;
    if (Overlap(chunk, block.begin, block.end).size() == 0) continue;
    const uint64_t word =
        board_->progress(run.ref, static_cast<uint32_t>(block.local))
            .staged.load(std::memory_order_acquire);
    if (CountAt(word, run.generation) <= chunk.begin / run.chunk_bytes) {
      return false;
    }
  }
  return true;
}

bool ChunkMover::ResultReady(const Run& run, uint32_t chunk) const {
  if (run.negotiated) {
    const uint64_t done =
        board_->run(run.ref).done.load(std::memory_order_acquire);
    return CountAt(done, run.generation) > chunk;
  }
  if (!run.reduces()) {
    return OwnersStaged(run, run.chunk(chunk));
  }
  for (const uint32_t j : run.set->locals) {
    const uint64_t word =
        board_->progress(run.ref, j).reduced.load(std::memory_order_acquire);
    if (CountAt(word, run.generation) <= chunk) return false;
  }
  return true;
}

bool ChunkMover::TryConsume(Run& run) {
  const uint32_t c = run.consumed;
  // This rank's own contributions come first: others need them, and an in-place
  // result would overwrite them.
  if (c == run.chunks) return false;
  if (c >= run.staged && c < run.stage_end) return false;
  if (run.reduces() && c >= run.reduced) return false;
  if (!ResultReady(run, c)) return false;
  MAYPOLE_KILL_POINT("consume.ready");
  if (c + 1 == run.chunks &&
      board_->Decide(run.ref, run.generation, Outcome::kCommitted) !=
          Outcome::kCommitted) {
    return false;
  }
  MAYPOLE_KILL_POINT("consume.decided");
  const Range chunk = run.chunk(c);
  if (run.negotiated) {
    Deliver(run, chunk, NodeChunk(run, c));
  } else if (run.reduces()) {
    if (!run.arena) DeliverReduced(run, chunk, c);
  } else {
    for (const StagedBlock& block : run.blocks) {
      const Range piece = Overlap(chunk, block.begin, block.end);
      if (piece.size() == 0) continue;
      const auto local = static_cast<uint32_t>(block.local);
      Deliver(run, piece,
              StagedChunk(run, local, c) + (piece.begin - chunk.begin));
    }
  }
  MAYPOLE_KILL_POINT("consume.copied");
  moved_bytes_ += chunk.size();
  run.consumed = c + 1;
  Publish(board_->progress(run.ref, me_).consumed, run, run.consumed);
  MAYPOLE_KILL_POINT("consume.published");
  return true;
}

void ChunkMover::DeliverReduced(const Run& run, const Range& chunk,
                                uint32_t number) {
  const auto ranks = static_cast<uint32_t>(run.set->locals.size());
  for (uint32_t j = 0; j < ranks; ++j) {
    if (j == run.place && WritesOutput(run)) continue;  // see ReduceSlice()
    const Range slice = SliceRange(chunk.size(), ranks, j);
    Deliver(run, {chunk.begin + slice.begin, chunk.begin + slice.end},
            StagedChunk(run, HolderOf(run, j), number) + slice.begin);
  }
}

std::byte* ChunkMover::StagedChunk(const Run& run, uint32_t local,
                                   uint32_t chunk) const {
  const uint64_t base =
      board_->progress(run.ref, local).base.load(std::memory_order_relaxed);
  return board_->rank_ring(local,
                           static_cast<uint32_t>((base + chunk) % depth_));
}

// The rank in whose ring the slice's owner writes the slice's result, over what
// that rank had staged for it. The owner has just read those cache lines, so
// writing them costs little. Lines of its own ring were last read by the other
// ranks, and would have to be taken from their caches first.
uint32_t ChunkMover::HolderOf(const Run& run, uint32_t slice) const {
  return run.set->locals[(slice + 1) % run.set->locals.size()];
}

std::byte* ChunkMover::NodeChunk(const Run& run, uint32_t chunk) const {
  const uint64_t base =
      board_->run(run.ref).node_base.load(std::memory_order_acquire);
  return board_->node_ring(static_cast<uint32_t>((base + chunk) % depth_));
}

void ChunkMover::Publish(std::atomic<uint64_t>& word, const Run& run,
                         uint32_t count, bool for_network) {
  word.store(Tagged(run.generation, count), std::memory_order_release);
  MAYPOLE_KILL_POINT("publish.stored");
  uint64_t others = 0;
  for (const uint32_t j : run.set->locals) {
    if (j != me_) others |= uint64_t{1} << j;
  }
  board_->WakeRanks(others);
  if (run.negotiated && for_network) board_->WakeNetwork();
}

}  // namespace maypole
