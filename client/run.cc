#include "client/run.h"

namespace maypole {
namespace {

constexpr uint32_t kLeastChunkBytes = 64 * 1024;
// Nothing is staged, so nothing need fit a cache; other runs get their turn
// between chunks.
constexpr uint32_t kArenaChunkBytes = 1024 * 1024;

// First dimension of every rank's tensor, by global rank.
std::vector<int64_t> FirstDims(const Board& board, const Run& run) {
  const BoardConfig& config = board.config();
  if (!run.negotiated) return LocalFirstDims(board, run.ref, run.generation);
  const int64_t* dims = board.plan_first_dims(run.ref - config.slots);
  return std::vector<int64_t>(dims, dims + config.size);
}

// The space of an allgather is its output: the ranks' tensors in rank order.
Status LayOutAllgather(const Board& board, Run& run) {
  Operation* op = run.parts.front().operation;
  const uint64_t row = op->signature.RowBytes();
  uint64_t at = 0;
  const std::vector<int64_t> dims = FirstDims(board, run);
  for (size_t rank = 0; rank < dims.size(); ++rank) {
    const uint64_t bytes = static_cast<uint64_t>(dims[rank]) * row;
    run.blocks.push_back(
        {LocalRankOf(board.config(), static_cast<int>(rank)), at, at + bytes});
    at += bytes;
  }
  run.bytes = at;
  run.parts.front().begin = 0;
  run.parts.front().end = at;
  return AllocateGathered(dims, op);
}

// Whether all ranks have all tensors of the reduction in their arenas.
bool FindTensors(const Board& board, Run& run) {
  for (Part& part : run.parts) {
    const Operation& op = *part.operation;
    for (uint32_t i = 0; i < board.config().local_size; ++i) {
      std::byte* const tensor =
          board.ArenaTensorOf(op.slot, i, op.generation, op.signature.Bytes());
      if (tensor == nullptr) return false;
      part.tensors.push_back(tensor);
    }
  }
  for (const Part& part : run.parts) part.operation->ran_in_arena = true;
  return true;
}

// Within the node a chunk is smaller the more ranks there are: the pieces that
// all of them have in hand shall fit their caches together. Network chunks fill
// their places, for each costs a round between the nodes.
uint32_t ChunkBytes(const BoardConfig& config, const Run& run) {
  if (run.negotiated) return config.chunk_bytes;
  if (run.arena) return kArenaChunkBytes;
  const uint32_t shared =
      config.chunk_bytes / (2 * config.local_size) / 64 * 64;
  return std::min(config.chunk_bytes, std::max(shared, kLeastChunkBytes));
}

// The chunks that hold bytes of this rank's blocks.
void FindContribution(uint32_t me, Run& run) {
  for (const Block& block : run.blocks) {
    if (block.local != static_cast<int>(me) || block.begin == block.end) {
      continue;
    }
    run.stage_begin = static_cast<uint32_t>(block.begin / run.chunk_bytes);
    run.stage_end = ChunkCount(block.end, run.chunk_bytes);
  }
}

}  // namespace

int LocalRankOf(const BoardConfig& config, int32_t rank) {
  for (uint32_t i = 0; i < config.local_size; ++i) {
    if (config.global_rank[i] == rank) return static_cast<int>(i);
  }
  return -1;
}

std::vector<int64_t> LocalFirstDims(const Board& board, uint32_t slot,
                                    uint32_t generation) {
  const BoardConfig& config = board.config();
  std::vector<int64_t> dims(config.size);
  for (uint32_t i = 0; i < config.local_size; ++i) {
    dims[static_cast<size_t>(config.global_rank[i])] =
        board.SignatureOf(slot, i, generation).shape[0];
  }
  return dims;
}

Status AllocateGathered(const std::vector<int64_t>& first_dims, Operation* op) {
  int64_t rows = 0;
  for (const int64_t n : first_dims) rows += n;
  const uint64_t bytes = static_cast<uint64_t>(rows) * op->signature.RowBytes();
  op->gathered.reset(
      static_cast<std::byte*>(std::malloc(bytes > 0 ? bytes : 1)));
  if (op->gathered == nullptr) {
    return Status(Code::kResourceExhausted,
                  op->Title() + ": no memory for a result of " +
                      std::to_string(bytes) + " bytes");
  }
  op->gathered_bytes = bytes;
  op->gathered_rows = rows;
  op->output = op->gathered.get();
  return Status();
}

Status LayOut(const Board& board, uint32_t me, Run& run) {
  run.signature = run.parts.front().operation->signature;
  Status status;
  switch (run.signature.kind) {
    case Kind::kBarrier:
      run.bytes = 0;
      break;
    case Kind::kAllgather:
      status = LayOutAllgather(board, run);
      break;
    case Kind::kBroadcast:
      run.blocks.push_back(
          {LocalRankOf(board.config(), run.signature.root), 0, run.bytes});
      break;
    default:
      break;
  }
  run.arena = run.reduces() && FindTensors(board, run);
  run.chunk_bytes = ChunkBytes(board.config(), run);
  run.chunks = ChunkCount(run.bytes, run.chunk_bytes);
  if (run.arena) {
    run.stage_end = 0;  // what others read lies there already
  } else if (run.reduces()) {
    run.stage_end = run.chunks;
  } else {
    FindContribution(me, run);
  }
  run.staged = run.stage_begin;
  return status;
}

}  // namespace maypole
