// Small: operations that one rank carries out alone, at once.
//
// Within the node, an operation of up to eager_bytes (of each rank) and every
// barrier go this way: each rank copies its input into a buffer of
// its pool before it arrives; the last to arrive claims the operation, reduces
// and commits; the others copy the result when they see the ticket. Who knows
// before it arrives that it is the last one reads its input where it is.
//
//   kind           brought by each rank        result
//   allreduce      its input (scaled)          in the next rank's buffer
//   reducescatter  its input (scaled)          in the next rank's buffer
//   broadcast      the root's input            in the root's buffer
//   allgather      its rows                    all buffers
//   alltoall       its rows                    all buffers
//   barrier        nothing                     nothing
//
// If some rank brought nothing though it should (no buffer was free, its rows
// of an allgather or alltoall are large, or it prefers that all take part in
// the work), the operation goes by rendezvous
// (client/engine/progress_engine.h).
//
// Thread contract: pure functions on the board; for one rank by one thread at a
// time.
#ifndef MAYPOLE_CLIENT_ENGINE_EAGER_H_
#define MAYPOLE_CLIENT_ENGINE_EAGER_H_

#include <array>
#include <cstdint>

#include "client/engine/eager_pool.h"
#include "client/engine/operation.h"
#include "common/board/board.h"
#include "common/limits.h"

namespace maypole {

// Before the arrival: what this rank brings, as Board::Arrive takes it.
int Contribute(const Board& board, uint32_t me, const Operation& op,
               EagerPool* pool);

// What the ranks have brought, by local rank, and so who goes on.
struct EagerInputs {
  enum class Next {
    kRendezvous,  // somebody has brought nothing
    kOther,       // the one whose input is not on the board
    kAny,         // whoever claims it first
  };
  Next next = Next::kRendezvous;
  std::array<int, kMaxLocalRanks> buffers;
};
// After all have arrived.
EagerInputs CollectEagerInputs(const Board& board, uint32_t me,
                               const Operation& op);

// By who has claimed the operation: the result, ready to be committed.
EagerResult EagerReduce(const Board& board, uint32_t me, const Operation& op,
                        const EagerInputs& brought);

// Copies a committed result to this rank's output and says so on the board.
// kResourceExhausted: no memory for what an allgather has gathered.
Status DeliverEager(const Board& board, uint32_t me, Operation& op,
                    const EagerResult& result);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_EAGER_H_
