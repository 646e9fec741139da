// Arrive: marks an operation present and, as the last local rank to come,
// sets it going; a small one it carries out at once.
//
// Eager operations are carried out at once by the last to arrive
// (client/engine/eager.h); the others get a ticket.
//
// Thread contract: may be called by any thread, for one rank by one thread at a
// time. `cursor` must have been read from the rank's progress engine before the
// call.
#ifndef MAYPOLE_CLIENT_ENGINE_ARRIVAL_H_
#define MAYPOLE_CLIENT_ENGINE_ARRIVAL_H_

#include <cstdint>

#include "client/engine/eager_pool.h"
#include "client/engine/operation.h"
#include "common/board/board.h"

namespace maypole {

struct ArriveResult {
  bool wake_executor = false;  // it sleeps: write its eventfd
  bool done = false;           // the operation has ended well already
  bool mismatch = false;       // this rank has failed it for all
  uint64_t ticket = kNoPlace;  // position of the ticket that this call placed
  // The ticket could not be placed yet: PlaceHeldTicket() must be tried again,
  // by this rank, until it can.
  bool held = false;
};

// Publishes the operation's arrival (slot and generation are set). The last
// local rank to arrive
//   within the node: compares the signatures; carries a eager operation out,
//     places the ticket, or fails the operation for all;
//   across nodes: tells the executor by the news bit.
// If a local rank that has not arrived has left the job, the operation fails.
ArriveResult Arrive(const Board& board, uint32_t me, uint64_t cursor,
                    Operation& operation, bool negotiated, EagerPool* pool);

// True when the ticket of such an operation has been placed.
bool PlaceHeldTicket(const Board& board, uint64_t cursor, RunRef slot,
                     uint32_t generation);

// Across nodes: makes the executor look at the slot. True if it sleeps: write
// its eventfd.
bool MarkSlotReady(const Board& board, const Operation& operation);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_ARRIVAL_H_
