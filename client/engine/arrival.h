// Arrive: publishes that this rank has submitted an operation. The last local
// rank to arrive starts the operation.
//
// The last rank to arrive runs an eager operation at once
// (client/engine/eager.h); for any other operation it queues a ticket.
//
// Thread contract: any thread may call these functions, but for one rank only
// one thread at a time. The caller must have read `cursor` from the rank's
// progress engine before the call.
#ifndef MAYPOLE_CLIENT_ENGINE_ARRIVAL_H_
#define MAYPOLE_CLIENT_ENGINE_ARRIVAL_H_

#include <cstdint>

#include "client/engine/eager_pool.h"
#include "client/engine/operation.h"
#include "common/board/board.h"

namespace maypole {

struct ArriveResult {
  bool wake_executor = false;  // the executor sleeps: write to its eventfd
  bool done = false;           // the operation has already ended successfully
  bool mismatch = false;       // this rank found a mismatch and failed it
  uint64_t ticket = kNoPlace;  // position of the ticket that this call placed
  // The ticket could not be placed yet: this rank must call PlaceHeldTicket()
  // until it returns true.
  bool held = false;
};

// Publishes the operation's arrival (the caller has set slot and generation).
// If it is the last local rank to arrive, then
//   within the node, it compares the signatures; then it runs an eager
//     operation, places a ticket, or fails the operation for all ranks;
//   across nodes, it sets the slot's ready bit for the executor.
// If a local rank has left the job without arriving, the operation fails.
ArriveResult Arrive(const Board& board, uint32_t me, uint64_t cursor,
                    Operation& operation, bool negotiated, EagerPool* pool);

// Tries again to place a held ticket; true if it has been placed.
bool PlaceHeldTicket(const Board& board, uint64_t cursor, RunRef slot,
                     uint32_t generation);

// Sets the slot's ready bit. True if the executor sleeps: the caller must write
// to its eventfd.
bool MarkSlotReady(const Board& board, const Operation& operation);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_ARRIVAL_H_
