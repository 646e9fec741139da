#include "client/small.h"

#include <cstring>
#include <span>
#include <vector>

#include "client/run.h"
#include "common/kill_point.h"
#include "common/reduce.h"

namespace maypole {
namespace {

// A rank that waits at once anyway does better to share the work from here on:
// two cores reduce faster than one.
constexpr uint64_t kSharedFromBytes = 16 * 1024;

bool IsSmall(const Board& board, const Operation& op) {
  switch (op.signature.kind) {
    case Kind::kBarrier:
      return true;
    case Kind::kAllreduce:
    case Kind::kBroadcast:
    case Kind::kAllgather:
      return op.signature.Bytes() <= board.config().small_bytes;
    default:
      return false;
  }
}

bool BringsInput(const Board& board, uint32_t me, const Signature& s) {
  if (s.kind == Kind::kBarrier) return false;
  return s.kind != Kind::kBroadcast || s.root == board.config().global_rank[me];
}

bool OthersArrived(const Board& board, uint32_t me, const Operation& op) {
  for (uint32_t i = 0; i < board.config().local_size; ++i) {
    if (i != me &&
        board.arrival(op.slot, i).generation.load(std::memory_order_acquire) <
            op.generation) {
      return false;
    }
  }
  return board.config().local_size > 1;
}

// In the order of global ranks, whatever their local ones are.
Status DeliverGathered(const Board& board, Operation& op) {
  const std::vector<int64_t> rows =
      LocalFirstDims(board, op.slot, op.generation);
  if (Status s = AllocateGathered(rows, &op); !s.ok()) return s;
  std::byte* to = op.gathered.get();
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const auto local = static_cast<uint32_t>(
        LocalRankOf(board.config(), static_cast<int>(rank)));
    const int buffer = board.BufferOf(op.slot, local, op.generation);
    const uint64_t bytes =
        static_cast<uint64_t>(rows[rank]) * op.signature.RowBytes();
    if (buffer < 0 || bytes == 0) continue;
    std::memcpy(to, board.pool(local, static_cast<uint32_t>(buffer)), bytes);
    to += bytes;
  }
  return Status();
}

}  // namespace

int Contribute(const Board& board, uint32_t me, const Operation& op,
               SmallPool* pool) {
  const Signature& s = op.signature;
  if (!IsSmall(board, op)) return kNoBuffer;
  if (!BringsInput(board, me, s)) return kNothing;
  if (s.kind == Kind::kAllreduce) {
    if (s.prescale == 1.0 && OthersArrived(board, me, op)) return kOwnInput;
    if (op.awaited && s.Bytes() > kSharedFromBytes) return kNoBuffer;
  }
  const bool all_read = s.kind == Kind::kAllgather;
  const int buffer = pool->Take(op.slot, op.generation, all_read);
  if (buffer < 0) return kNoBuffer;
  MAYPOLE_KILL_POINT("pool.taken");
  std::byte* to = board.pool(me, static_cast<uint32_t>(buffer));
  if (s.Bytes() == 0) return buffer;
  if (s.prescale != 1.0) {
    Scale(s.dtype, op.input, to, static_cast<size_t>(s.Elements()), s.prescale);
  } else {
    std::memcpy(to, op.input, s.Bytes());
  }
  return buffer;
}

Brought WhatWasBrought(const Board& board, uint32_t me, const Operation& op) {
  Brought brought;
  if (!IsSmall(board, op)) return brought;
  brought.next = Brought::Next::kAny;
  for (uint32_t i = 0; i < board.config().local_size; ++i) {
    const int buffer = board.BufferOf(op.slot, i, op.generation);
    brought.buffers[i] = buffer;
    if (buffer == kNoBuffer) {
      brought.next = Brought::Next::kLargeWay;
      break;
    }
    if (buffer == kOwnInput && i != me) brought.next = Brought::Next::kOther;
  }
  return brought;
}

SmallResult CarryOut(const Board& board, uint32_t me, const Operation& op,
                     const Brought& brought) {
  const BoardConfig& config = board.config();
  const Signature& s = op.signature;
  if (s.kind == Kind::kBroadcast) {
    for (uint32_t i = 0; i < config.local_size; ++i) {
      if (config.global_rank[i] == s.root) {
        return {i, static_cast<uint32_t>(brought.buffers[i])};
      }
    }
  }
  if (s.kind != Kind::kAllreduce) return {me, 0};  // it takes nothing more
  std::array<const std::byte*, kMaxLocalRanks> inputs;
  for (uint32_t i = 0; i < config.local_size; ++i) {
    const int buffer = brought.buffers[i];
    inputs[i] = buffer == kOwnInput
                    ? op.input
                    : board.pool(i, static_cast<uint32_t>(buffer));
  }
  Finish finish;
  if (s.op == Op::kAverage) finish.divisor = config.size;
  finish.scale = s.postscale;
  // Into a buffer that this rank has to read anyway: see Mover::HolderOf.
  const uint32_t holder = (me + 1) % config.local_size;
  const auto buffer = static_cast<uint32_t>(brought.buffers[holder]);
  Sum(s.dtype, std::span(inputs.data(), config.local_size),
      board.pool(holder, buffer), static_cast<size_t>(s.Elements()), finish);
  return {holder, buffer};
}

Status DeliverSmall(const Board& board, uint32_t me, Operation& op,
                    const SmallResult& result) {
  const uint64_t bytes = op.signature.Bytes();
  if (op.signature.kind == Kind::kAllgather) {
    if (Status s = DeliverGathered(board, op); !s.ok()) return s;
  } else if (bytes > 0) {
    std::memcpy(op.output, board.pool(result.local, result.buffer), bytes);
  }
  MAYPOLE_KILL_POINT("small.copied");
  board.progress(op.slot, me)
      .consumed.store(Tagged(op.generation, UINT32_MAX),
                      std::memory_order_release);
  MAYPOLE_KILL_POINT("small.consumed");
  return Status();
}

}  // namespace maypole
