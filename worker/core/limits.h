// Limits of the worker agent (promise 8 of docs/design.md). Those that clients
// share stand in common/limits.h.
#ifndef MAYPOLE_WORKER_CORE_LIMITS_H_
#define MAYPOLE_WORKER_CORE_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "common/limits.h"

namespace maypole::worker {

// --- Supervisor --------------------------------------------------------------
// Connections that have not said Hello yet; the oldest is closed for a new one.
inline constexpr size_t kMaxHalfOpen = 64;
inline constexpr int64_t kHelloTimeoutMs = 5000;
// Executors at once; also bounds the metrics' job label.
inline constexpr size_t kMaxExecutors = 256;
// Of one user, where an agent serves all: others find room, too.
inline constexpr size_t kMaxExecutorsOfUser = 64;

// --- Executor ----------------------------------------------------------------
// The directory service answers in this time which groups a user has.
inline constexpr int64_t kGroupLookupMs = 10000;
// Connections: the ranks of one epoch, and those that wait for the next.
inline constexpr size_t kMaxClients = 2 * kMaxLocalRanks;
// Replies kept for a client that does not read them yet: one for every name it
// may have. As many requests wait for slots.
inline constexpr size_t kMaxUnsentReplies = kMaxSlots;
// An executor without clients asks to end after this.
inline constexpr int64_t kIdleMs = 10000;
// Ranks that wait for others of their node wait this much longer than the start
// timeout: the coordinator can say more about who is missing.
inline constexpr int64_t kStartGraceMs = 1000;
// A failed backend waits this much longer than the coordinator's own resume
// timeout for the coordinator to say what really happened.
inline constexpr int64_t kBackendGraceMs = 500;
// While a rank has left, operations that wait for it are sought this often.
inline constexpr int64_t kLeftScanMs = 100;
// How often the board is looked at for ranks that are late or stand still; and
// while all of them say that they are blocked.
inline constexpr int64_t kBoardScanMs = 500;
inline constexpr int64_t kBlockedScanMs = 100;
// A name that finds no slot is an error when none has become free for so long
// (the coordinator, which is asked too, may be away for the resume timeout);
// until then idle ones are looked for after this pause, twice as long after
// each look that finds none.
inline constexpr int64_t kSlotWaitMs = 4000;
inline constexpr int64_t kRecallPauseMs = 10;
inline constexpr int64_t kMostRecallPauseMs = 160;
// Late operations in one message.
inline constexpr size_t kMaxLateOperations = 64;
// Requests of a rank for process sets that wait for their answers.
inline constexpr size_t kMaxWaitingRequests = kMaxSetRequests;
// A Presence message is closed when it has reached this size.
inline constexpr size_t kMaxPresenceBytes = 1 << 20;
// Runs that wait for a free Plan record.
inline constexpr size_t kMaxQueuedRuns = 65536;

// --- Link to the coordinator -------------------------------------------------
inline constexpr size_t kMaxUnacknowledged = 4096;
inline constexpr int kMaxCoordinatorMessageBytes = 64 << 20;
inline constexpr int kReconnectFirstMs = 50;
inline constexpr int kReconnectMostMs = 500;

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LIMITS_H_
