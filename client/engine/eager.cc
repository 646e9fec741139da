#include "client/engine/eager.h"

#include <cstring>
#include <span>
#include <vector>

#include "client/engine/run.h"
#include "common/board/kill_point.h"
#include "common/reduce/reduce.h"

namespace maypole {
namespace {

// From this size on, a rank that waits at once prefers that all ranks share the
// work, because two cores reduce faster than one.
constexpr uint64_t kSharedFromBytes = 16 * 1024;

bool IsEager(const Board& board, const Operation& op) {
  return op.signature.kind == Kind::kBarrier ||
         op.signature.Bytes() <= board.config().eager_bytes;
}

bool BringsInput(const Board& board, uint32_t me, const Signature& s) {
  if (s.kind == Kind::kBarrier) return false;
  return s.kind != Kind::kBroadcast || s.root == board.config().global_rank[me];
}

bool OthersArrived(const Board& board, uint32_t me, const Operation& op) {
  for (const uint32_t i : op.set->locals) {
    if (i != me &&
        board.arrival(op.slot, i).generation.load(std::memory_order_acquire) <
            op.generation) {
      return false;
    }
  }
  return op.set->locals.size() > 1;
}

// Copies the rank's input, scaled, to a buffer of its pool.
int CopyIn(const Board& board, uint32_t me, const Operation& op,
           EagerPool* pool) {
  const Signature& s = op.signature;
  const bool all_read = Gathers(s.kind);
  const int buffer = pool->Take(op.slot, op.generation, all_read);
  if (buffer < 0) return kNoBuffer;
  MAYPOLE_KILL_POINT("pool.taken");
  std::byte* to = board.pool(me, static_cast<uint32_t>(buffer));
  if (s.Bytes() == 0) return buffer;
  if (Reduces(s.kind) && op.prescale() != 1.0) {
    Scale(s.dtype, op.input, to, static_cast<size_t>(s.Elements()),
          op.prescale());
  } else {
    std::memcpy(to, op.input, s.Bytes());
  }
  return buffer;
}

const std::byte* EagerInputOf(const Board& board, const Operation& op,
                              uint32_t local) {
  const int buffer = board.BufferOf(op.slot, local, op.generation);
  return buffer < 0 ? nullptr
                    : board.pool(local, static_cast<uint32_t>(buffer));
}

// Copies the ranks' rows to the output in the order of global ranks, whatever
// their local ranks are.
Status DeliverGathered(const Board& board, Operation& op) {
  const std::vector<int64_t> rows = LocalFirstDims(board, op);
  if (Status s = AllocateGathered(rows, &op); !s.ok()) return s;
  std::byte* to = op.output;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const uint64_t bytes =
        static_cast<uint64_t>(rows[rank]) * op.signature.RowBytes();
    if (bytes == 0 || to == nullptr) continue;
    const auto local = static_cast<uint32_t>(
        LocalRankOf(board.config(), static_cast<int>(rank)));
    const std::byte* from = EagerInputOf(board, op, local);
    if (from == nullptr) continue;
    std::memcpy(to, from, bytes);
    to += bytes;
  }
  return Status();
}

Status DeliverExchanged(const Board& board, uint32_t me, Operation& op) {
  const ProcessSet& set = *op.set;
  const size_t n = set.ranks.size();
  const auto mine =
      static_cast<size_t>(set.PositionOf(board.config().global_rank[me]));
  const std::vector<int64_t> splits = LocalSplits(board, op);
  const uint64_t row = op.signature.RowBytes();
  op.received.clear();
  for (size_t from = 0; from < n; ++from) {
    op.received.push_back(splits[from * n + mine]);
  }
  if (Status s = AllocateGathered(op.received, &op); !s.ok()) return s;
  std::byte* to = op.output;
  for (size_t from = 0; from < n && to != nullptr; ++from) {
    uint64_t before = 0;
    for (size_t j = 0; j < mine; ++j) {
      before += static_cast<uint64_t>(splits[from * n + j]) * row;
    }
    const uint64_t bytes = static_cast<uint64_t>(op.received[from]) * row;
    const auto local =
        static_cast<uint32_t>(LocalRankOf(board.config(), set.ranks[from]));
    const std::byte* source = EagerInputOf(board, op, local);
    if (bytes == 0 || source == nullptr) continue;
    std::memcpy(to, source + before, bytes);
    to += bytes;
  }
  return Status();
}

}  // namespace

int Contribute(const Board& board, uint32_t me, const Operation& op,
               EagerPool* pool) {
  const Signature& s = op.signature;
  if (!IsEager(board, op)) return kNoBuffer;
  if (!BringsInput(board, me, s)) return kNothing;
  if (Reduces(s.kind)) {
    if (op.prescale() == 1.0 && OthersArrived(board, me, op)) return kOwnInput;
    if (op.awaited && s.Bytes() > kSharedFromBytes) return kNoBuffer;
  }
  return CopyIn(board, me, op, pool);
}

int ContributeCopy(const Board& board, uint32_t me, const Operation& op,
                   EagerPool* pool) {
  const bool wanted =
      board.slot(op.slot).wants_copies.load(std::memory_order_relaxed) != 0;
  if (!wanted || !Reduces(op.signature.kind) || !IsEager(board, op)) {
    return kNoBuffer;
  }
  return CopyIn(board, me, op, pool);
}

EagerInputs CollectEagerInputs(const Board& board, uint32_t me,
                               const Operation& op) {
  EagerInputs eager_input;
  if (!IsEager(board, op)) return eager_input;
  eager_input.next = EagerInputs::Next::kAny;
  for (const uint32_t i : op.set->locals) {
    const int buffer = board.BufferOf(op.slot, i, op.generation);
    eager_input.buffers[i] = buffer;
    if (buffer == kNoBuffer) {
      eager_input.next = EagerInputs::Next::kRendezvous;
      break;
    }
    if (buffer == kOwnInput && i != me)
      eager_input.next = EagerInputs::Next::kOther;
  }
  return eager_input;
}

EagerResult EagerReduce(const Board& board, uint32_t me, const Operation& op,
                        const EagerInputs& eager_input) {
  const BoardConfig& config = board.config();
  const Signature& s = op.signature;
  if (s.kind == Kind::kBroadcast) {
    const auto root = static_cast<uint32_t>(LocalRankOf(config, s.root));
    return {root, static_cast<uint32_t>(eager_input.buffers[root])};
  }
  if (!Reduces(s.kind)) return {me, 0};  // nothing to compute
  const std::vector<uint32_t>& locals = op.set->locals;
  std::array<const std::byte*, kMaxLocalRanks> inputs;
  for (size_t i = 0; i < locals.size(); ++i) {
    const int buffer = eager_input.buffers[locals[i]];
    inputs[i] = buffer == kOwnInput
                    ? op.input
                    : board.pool(locals[i], static_cast<uint32_t>(buffer));
  }
  // The result goes into a buffer that this rank reads anyway: see
  // ChunkMover::HolderOf.
  const auto place = static_cast<size_t>(op.set->PlaceOf(me));
  const uint32_t holder = locals[(place + 1) % locals.size()];
  const auto buffer = static_cast<uint32_t>(eager_input.buffers[holder]);
  Reduce(s.dtype, s.op, std::span(inputs.data(), locals.size()),
         board.pool(holder, buffer), static_cast<size_t>(s.Elements()),
         EpilogueOf(s.op, s.postscale, op.set->size()));
  return {holder, buffer};
}

Status DeliverEager(const Board& board, uint32_t me, Operation& op,
                    const EagerResult& result) {
  const Kind kind = op.signature.kind;
  if (Gathers(kind)) {
    Status s = kind == Kind::kAllgather ? DeliverGathered(board, op)
                                        : DeliverExchanged(board, me, op);
    if (!s.ok()) return s;
  } else if (op.output != nullptr && op.signature.Bytes() > 0) {
    const Range wanted = kind == Kind::kReducescatter
                             ? ScatteredBytes(board.config(), me, op)
                             : Range{0, op.signature.Bytes()};
    std::memcpy(op.output,
                board.pool(result.local, result.buffer) + wanted.begin,
                wanted.size());
  }
  MAYPOLE_KILL_POINT("eager.copied");
  board.progress(op.slot, me)
      .consumed.store(Tagged(op.generation, UINT32_MAX),
                      std::memory_order_release);
  MAYPOLE_KILL_POINT("eager.consumed");
  return Status();
}

}  // namespace maypole
