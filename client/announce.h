// Announce: marks an operation present and, as the last local rank to come,
// sets it going; a small one it carries out at once.
//
// Small operations are carried out at once by the last to arrive
// (client/small.h); the others get a ticket.
//
// Thread contract: may be called by any thread, for one rank by one thread at a
// time. `cursor` must have been read from the rank's mover before the call.
#ifndef MAYPOLE_CLIENT_ANNOUNCE_H_
#define MAYPOLE_CLIENT_ANNOUNCE_H_

#include <cstdint>

#include "client/operation.h"
#include "client/small_pool.h"
#include "common/board.h"

namespace maypole {

struct Announced {
  bool wake_executor = false;  // it sleeps: write its eventfd
  bool done = false;           // the operation has ended well already
  bool mismatch = false;       // this rank has failed it for all
  uint64_t ticket = kNoPlace;  // position of the ticket that this call placed
  // The ticket could not be placed yet: PlaceHeld() must be tried again, by
  // this rank, until it can.
  bool held = false;
};

// Publishes the operation's arrival (slot and generation are set). The last
// local rank to arrive
//   within the node: compares the signatures; carries a small operation out,
//     places the ticket, or fails the operation for all;
//   across nodes: tells the executor by the news bit.
// If a local rank that has not arrived has left the job, the operation fails.
Announced Announce(const Board& board, uint32_t me, uint64_t cursor,
                   Operation& operation, bool negotiated, SmallPool* pool);

// True when the ticket of such an operation has been placed.
bool PlaceHeld(const Board& board, uint64_t cursor, RunRef slot,
               uint32_t generation);

// Across nodes: makes the executor look at the slot. True if it sleeps: write
// its eventfd.
bool MakeNews(const Board& board, const Operation& operation);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ANNOUNCE_H_
