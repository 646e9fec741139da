// Eager operations: one rank runs the whole operation at once.
//
// Within the node, every barrier and every operation of up to eager_bytes per
// rank is eager. Before it arrives, each rank copies its input into a buffer of
// its pool. The last rank to arrive claims the operation, reduces and commits;
// the others copy the result when they see the ticket. A rank that already
// knows that it is the last makes no copy: it reads its input in place.
//
//   kind           contributed by each rank    result
//   allreduce      its input (scaled)          in the next rank's buffer
//   reducescatter  its input (scaled)          in the next rank's buffer
//   broadcast      the root's input            in the root's buffer
//   allgather      its rows                    all buffers
//   alltoall       its rows                    all buffers
//   barrier        nothing                     nothing
//
// The operation takes the rendezvous path (client/engine/progress_engine.h) if
// a rank that should have put its input on the board has not: no buffer was
// free, its rows of an allgather or alltoall are too large, or the rank prefers
// that all ranks share the work.
//
// Thread contract: pure functions on the board; for one rank, one thread at a
// time may call them.
#ifndef MAYPOLE_CLIENT_ENGINE_EAGER_H_
#define MAYPOLE_CLIENT_ENGINE_EAGER_H_

#include <array>
#include <cstdint>

#include "client/engine/eager_pool.h"
#include "client/engine/operation.h"
#include "common/board/board.h"
#include "common/limits.h"

namespace maypole {

// Called before the arrival: puts this rank's input on the board and returns
// the `buffer` argument for Board::Arrive().
int Contribute(const Board& board, uint32_t me, const Operation& op,
               EagerPool* pool);
// The same for an operation of several nodes, whose executor wants copies
// (SlotHeader.wants_copies): kNoBuffer if the executor needs none of this
// operation.
int ContributeCopy(const Board& board, uint32_t me, const Operation& op,
                   EagerPool* pool);

// What the ranks have contributed, by local rank, and which rank must run the
// operation.
struct EagerInputs {
  enum class Next {
    kRendezvous,  // all ranks: an input is missing
    kOther,       // another rank, which reads its input in place
    kAny,         // the rank that claims it first
  };
  Next next = Next::kRendezvous;
  std::array<int, kMaxLocalRanks> buffers;
};
// Called after all ranks have arrived.
EagerInputs CollectEagerInputs(const Board& board, uint32_t me,
                               const Operation& op);

// Called by the rank that has claimed the operation: returns the result, ready
// to be committed.
EagerResult EagerReduce(const Board& board, uint32_t me, const Operation& op,
                        const EagerInputs& eager_input);

// Copies a committed result to this rank's output and publishes that on the
// board. kResourceExhausted: no memory for an allgather's or alltoall's result.
Status DeliverEager(const Board& board, uint32_t me, Operation& op,
                    const EagerResult& result);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_EAGER_H_
