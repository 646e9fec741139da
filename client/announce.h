// Announce: marks an operation present and, as the last local rank to come,
// sets it going.
//
// Thread contract: may be called by any thread, for one slot by one thread at a
// time. `cursor` must have been read from the rank's mover before the call.
#ifndef MAYPOLE_CLIENT_ANNOUNCE_H_
#define MAYPOLE_CLIENT_ANNOUNCE_H_

#include <cstdint>

#include "client/operation.h"
#include "common/board.h"

namespace maypole {

// Publishes the operation's arrival (slot and generation are set). The last
// local rank to arrive
//   within the node: compares the signatures; places the ticket, or fails the
//     operation for all;
//   across nodes: tells the executor by the news bit. Returns true if the
//     executor sleeps and must be woken by its eventfd.
// If a local rank that has not arrived has left the job, the operation fails.
bool Announce(const Board& board, uint32_t me, uint64_t cursor,
              const Operation& operation, bool negotiated);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ANNOUNCE_H_
