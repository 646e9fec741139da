#include "client/engine/run.h"

#include <numeric>

namespace maypole {
namespace {

constexpr uint32_t kLeastChunkBytes = 64 * 1024;
// Nothing is staged, so a chunk need not fit into a cache. Between chunks,
// other runs get their turn.
constexpr uint32_t kArenaChunkBytes = 1024 * 1024;

// False if the members, which are all on this node, have written their sizes to
// the slot.
bool RecordHasSizes(const Run& run) {
  const bool by_ranks_of_node = run.site == RunSite::kRanks &&
                                !run.parts.front().operation->set->negotiated();
  return run.negotiated && !by_ranks_of_node;
}

// First dimension of every rank's tensor, by global rank.
std::vector<int64_t> FirstDims(const Board& board, const Run& run) {
  const BoardConfig& config = board.config();
  if (!RecordHasSizes(run)) {
    return LocalFirstDims(board, *run.parts.front().operation);
  }
  const int64_t* dims = board.plan_first_dims(run.ref - config.slots);
  return std::vector<int64_t>(dims, dims + config.size);
}

std::vector<int64_t> Splits(const Board& board, const Run& run) {
  if (!RecordHasSizes(run)) {
    return LocalSplits(board, *run.parts.front().operation);
  }
  const PlanHeader& plan = board.plan(run.ref - board.config().slots);
  const int64_t* rows = board.matrix(plan.matrix % kMatrices);
  const size_t n = run.set->ranks.size();
  return std::vector<int64_t>(rows, rows + n * n);
}

// The space of an allgather is its output: the ranks' tensors in rank order.
Status LayOutAllgather(const Board& board, Run& run) {
  Operation* op = run.parts.front().operation;
  const uint64_t row = op->signature.RowBytes();
  uint64_t at = 0;
  const std::vector<int64_t> dims = FirstDims(board, run);
  for (size_t rank = 0; rank < dims.size(); ++rank) {
    const uint64_t bytes = static_cast<uint64_t>(dims[rank]) * row;
    if (bytes == 0) continue;
    run.blocks.push_back(
        {LocalRankOf(board.config(), static_cast<int>(rank)), at, at + bytes});
    at += bytes;
  }
  run.bytes = at;
  run.parts.front().end = at;
  Status status = AllocateGathered(dims, op);
  if (op->output != nullptr) run.pieces.push_back({0, at, op->output});
  return status;
}

// What the rank at `position` of n ranks receives from each.
std::vector<int64_t> Column(const std::vector<int64_t>& splits, size_t n,
                            size_t position) {
  std::vector<int64_t> out;
  for (size_t from = 0; from < n; ++from) {
    out.push_back(splits[from * n + position]);
  }
  return out;
}

// The space of an alltoall is the ranks' inputs in rank order. Each input
// consists of the rows for the first rank, for the second, and so on.
Status LayOutAlltoall(const Board& board, uint32_t me, Run& run) {
  Operation* op = run.parts.front().operation;
  const ProcessSet& set = *run.set;
  const size_t n = set.ranks.size();
  const auto mine =
      static_cast<size_t>(set.PositionOf(board.config().global_rank[me]));
  const uint64_t row = op->signature.RowBytes();
  const std::vector<int64_t> splits = Splits(board, run);
  op->received = Column(splits, n, mine);
  Status status = AllocateGathered(op->received, op);
  std::byte* to = op->output;
  uint64_t at = 0;
  for (size_t from = 0; from < n; ++from) {
    const uint64_t begin = at;
    for (size_t rank = 0; rank < n; ++rank) {
      const uint64_t bytes =
          static_cast<uint64_t>(splits[from * n + rank]) * row;
      if (rank == mine && bytes > 0 && to != nullptr) {
        run.pieces.push_back({at, at + bytes, to});
        to += bytes;
      }
      at += bytes;
    }
    if (at == begin) continue;
    run.blocks.push_back(
        {LocalRankOf(board.config(), set.ranks[from]), begin, at});
  }
  run.bytes = at;
  run.parts.front().end = at;
  return status;
}

// True if all ranks have all tensors of the reduction in their arenas; then
// sets `tensors` of each part.
bool FindTensors(const Board& board, Run& run) {
  const uint64_t reach = board.ArenaReach(run.set->mask());
  for (Part& part : run.parts) {
    const Operation& op = *part.operation;
    for (const uint32_t i : run.set->locals) {
      std::byte* const tensor = board.ArenaTensorOf(
          op.slot, i, op.generation, op.signature.Bytes(), reach);
      if (tensor == nullptr) return false;
      part.tensors.push_back(tensor);
    }
  }
  for (const Part& part : run.parts) part.operation->ran_in_arena = true;
  return true;
}

// Within the node, chunks are smaller if there are more ranks, so that the
// pieces that all ranks work on fit into their caches together. Network chunks
// fill their ring entries, because each costs a round between the nodes.
uint32_t ChunkBytes(const BoardConfig& config, const Run& run) {
  if (run.negotiated) return config.chunk_bytes;
  if (run.arena) return kArenaChunkBytes;
  const auto ranks = static_cast<uint32_t>(run.set->locals.size());
  const uint32_t shared = config.chunk_bytes / (2 * ranks) / 64 * 64;
  return std::min(config.chunk_bytes, std::max(shared, kLeastChunkBytes));
}

// Sets stage_begin and stage_end: the chunks that hold bytes of this rank's
// blocks.
void FindContribution(uint32_t me, Run& run) {
  for (const StagedBlock& block : run.blocks) {
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

std::vector<int64_t> LocalFirstDims(const Board& board, const Operation& op) {
  const BoardConfig& config = board.config();
  std::vector<int64_t> dims(config.size);
  for (const uint32_t i : op.set->locals) {
    dims[static_cast<size_t>(config.global_rank[i])] =
        board.SignatureOf(op.slot, i, op.generation).shape[0];
  }
  return dims;
}

std::vector<int64_t> LocalSplits(const Board& board, const Operation& op) {
  const size_t n = op.set->ranks.size();
  std::vector<int64_t> rows(n * n);
  const uint32_t number =
      board.slot(op.slot).splits.load(std::memory_order_relaxed);
  for (const uint32_t i : op.set->locals) {
    const auto at =
        static_cast<size_t>(op.set->PositionOf(board.config().global_rank[i]));
    const std::atomic<int64_t>* row =
        board.splits(number - 1, i, op.generation);
    for (size_t to = 0; to < n; ++to) {
      rows[at * n + to] = row[to].load(std::memory_order_relaxed);
    }
  }
  return rows;
}

std::vector<int64_t> SizeResult(const Board& board, uint32_t me, Run& run) {
  Operation& op = *run.parts.front().operation;
  run.signature = op.signature;
  run.set = op.set;
  std::vector<int64_t> rows;
  if (run.signature.kind == Kind::kAllgather) {
    const std::vector<int64_t> dims = FirstDims(board, run);
    for (const int rank : run.set->ranks) {
      rows.push_back(dims[static_cast<size_t>(rank)]);
    }
  } else {
    rows = Splits(board, run);
    op.received = Column(rows, run.set->ranks.size(),
                         static_cast<size_t>(run.set->PositionOf(
                             board.config().global_rank[me])));
  }
  const std::vector<int64_t>& mine =
      run.signature.kind == Kind::kAllgather ? rows : op.received;
  const int64_t sum = std::accumulate(mine.begin(), mine.end(), int64_t{0});
  op.SetGathered(static_cast<uint64_t>(sum) * op.signature.RowBytes(), sum);
  return rows;
}

uint64_t ResultAt(const BoardConfig& config, uint32_t me, const Operation& op) {
  const Kind kind = op.signature.kind;
  if (Gathers(kind)) return GpuResultAt(op.signature.Bytes());
  return kind == Kind::kReducescatter ? ScatteredBytes(config, me, op).begin
                                      : 0;
}

Status AllocateGathered(const std::vector<int64_t>& counts, Operation* op) {
  if (op->stands_in) return Status();
  const int64_t rows =
      std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const uint64_t bytes = static_cast<uint64_t>(rows) * op->signature.RowBytes();
  if (op->MakeGathered(bytes, rows)) return Status();
  return Status(Code::kResourceExhausted, op->Title() +
                                              ": no memory for a result of " +
                                              std::to_string(bytes) + " bytes");
}

Range ScatteredBytes(const BoardConfig& config, uint32_t me,
                     const Operation& op) {
  const int ranks = op.set->size();
  const int position = op.set->PositionOf(config.global_rank[me]);
  const uint64_t row = op.signature.RowBytes();
  const auto first =
      static_cast<uint64_t>(FirstScatteredRow(op.signature, ranks, position));
  const auto rows =
      static_cast<uint64_t>(ScatteredRows(op.signature, ranks, position));
  return {first * row, (first + rows) * row};
}

void FindPieces(const Board& board, uint32_t me, Run& run) {
  run.pieces.clear();
  for (const Part& part : run.parts) {
    if (part.operation->output == nullptr) continue;
    Range range{0, part.end - part.begin};
    if (run.signature.kind == Kind::kReducescatter) {
      range = ScatteredBytes(board.config(), me, *part.operation);
    }
    if (range.size() == 0) continue;
    run.pieces.push_back({part.begin + range.begin, part.begin + range.end,
                          part.operation->output});
  }
}

Status LayOut(const Board& board, uint32_t me, Run& run) {
  const Operation& first = *run.parts.front().operation;
  run.signature = first.signature;
  run.set = first.set;
  run.place = static_cast<uint32_t>(run.set->PlaceOf(me));
  Status status;
  switch (run.signature.kind) {
    case Kind::kBarrier:
      run.bytes = 0;
      break;
    case Kind::kAllgather:
      status = LayOutAllgather(board, run);
      break;
    case Kind::kAlltoall:
      status = LayOutAlltoall(board, me, run);
      break;
    case Kind::kBroadcast:
      run.blocks.push_back(
          {LocalRankOf(board.config(), run.signature.root), 0, run.bytes});
      FindPieces(board, me, run);
      break;
    default:
      FindPieces(board, me, run);
      break;
  }
  run.arena = run.reduces() && FindTensors(board, run);
  run.chunk_bytes = ChunkBytes(board.config(), run);
  run.chunks = ChunkCount(run.bytes, run.chunk_bytes);
  if (run.arena) {
    run.stage_end = 0;  // the other ranks read the tensors in place
  } else if (run.reduces()) {
    run.stage_end = run.chunks;
  } else {
    FindContribution(me, run);
  }
  run.staged = run.stage_begin;
  return status;
}

}  // namespace maypole
