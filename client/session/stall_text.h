// StallText: describes for the user what a stalled wait is waiting for.
//
// Thread contract: any thread may call it; it takes the core's lock briefly.
#ifndef MAYPOLE_CLIENT_SESSION_STALL_TEXT_H_
#define MAYPOLE_CLIENT_SESSION_STALL_TEXT_H_

#include <string>

#include "client/engine/operation.h"
#include "client/engine/rank_core.h"
#include "common/board/board.h"

namespace maypole {

// For example "rank 3 of this node: not submitted yet".
std::string StallText(const Board& board, const RankCore& core,
                      const Operation& operation);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_STALL_TEXT_H_
