// Limits of the agent and its executors (promise 8 of docs/design.md). Limits
// that clients share are in common/limits.h.
#ifndef MAYPOLE_WORKER_CORE_LIMITS_H_
#define MAYPOLE_WORKER_CORE_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/limits.h"

namespace maypole::worker {

// --- Supervisor --------------------------------------------------------------
// Connections that have not sent Hello. Beyond this, the oldest is closed.
inline constexpr size_t kMaxHalfOpen = 64;
inline constexpr int64_t kHelloTimeoutMs = 5000;
// Executors at the same time; also bounds the metrics' job label.
inline constexpr size_t kMaxExecutors = 256;
// Executors of one user, if the agent serves all users.
inline constexpr size_t kMaxExecutorsOfUser = 64;

// --- Executor ----------------------------------------------------------------
// The directory service must return a user's groups within this time.
inline constexpr int64_t kGroupLookupMs = 10000;
// Connections: the ranks of one epoch and those that wait for the next.
inline constexpr size_t kMaxClients = 2 * kMaxLocalRanks;
// Replies that are kept for a client that does not read them: one for each name
// it may have. Also bounds the requests that wait for slots.
inline constexpr size_t kMaxUnsentReplies = kMaxSlots;
// An executor that has had no clients for this long asks to end. One that keeps
// states (StateStore) does so only after --state_timeout.
inline constexpr int64_t kIdleMs = 10000;
// Ranks that wait for others of their node wait this much longer than the start
// timeout, because the coordinator can name more of the missing ranks.
inline constexpr int64_t kStartGraceMs = 1000;
// After a backend failure, the executor waits the resume timeout and this much
// longer for the coordinator to send the real cause.
inline constexpr int64_t kBackendGraceMs = 500;
// After a rank has left, the board is searched this often for operations that
// wait for it.
inline constexpr int64_t kLeftScanMs = 100;
// How often the board is scanned for stragglers and frozen ranks; and how often
// while all ranks say that they are blocked.
inline constexpr int64_t kBoardScanMs = 500;
inline constexpr int64_t kBlockedScanMs = 100;
// A name that finds no slot gets an error when no slot has become free for
// kSlotWaitMs (the coordinator may have to retire names first, and may be away
// for the resume timeout). Until then the executor looks for idle slots every
// kRecallPauseMs; this pause doubles each time it finds none, up to
// kMostRecallPauseMs.
inline constexpr int64_t kSlotWaitMs = 4000;
inline constexpr int64_t kRecallPauseMs = 10;
inline constexpr int64_t kMostRecallPauseMs = 160;
// Late operations in one message to the coordinator.
inline constexpr size_t kMaxLateOperations = 64;
// Unanswered requests of one rank for process sets.
inline constexpr size_t kMaxWaitingRequests = kMaxSetRequests;
// kMaxComparedResults: operations whose results are compared at a time. A
// Results message is sent when it has reached kMaxResultsBytes, or after
// kResultsPauseMs.
inline constexpr size_t kMaxComparedResults = 65536;
inline constexpr size_t kMaxResultsBytes = 1 << 18;
inline constexpr int64_t kResultsPauseMs = 100;
// A Presence message is closed when it has reached this size.
inline constexpr size_t kMaxPresenceBytes = 1 << 20;
// Statistics are sent at most this often, whatever the coordinator requests.
inline constexpr int64_t kLeastStatsPauseMs = 100;
// A rank of the frozen tier (operations/schedule.h) that waits for this long
// makes the nodes ask the coordinator again.
inline constexpr int64_t kScheduleLateMs = 100;
// A run is small if a node's inputs, sent to all other nodes, have at most this
// many bytes.
inline constexpr uint64_t kMaxSmallRunBytes = uint64_t{64} << 10;
// Runs that wait for a free Plan record.
inline constexpr size_t kMaxQueuedRuns = 65536;

// --- Link to the coordinator -------------------------------------------------
inline constexpr size_t kMaxUnacknowledged = 4096;
inline constexpr int kMaxCoordinatorMessageBytes = 64 << 20;
// A longer NodeState is sent in pieces of this size.
inline constexpr size_t kNodeStatePieceBytes = size_t{1} << 20;
// The executor acknowledges the coordinator's messages in its own next message.
// It sends a message for that alone only after kAckEvery messages, or
// kAckPause. (So not every Execute costs a message in return.)
inline constexpr uint64_t kAckEvery = 16;
inline constexpr std::chrono::milliseconds kAckPause(20);
inline constexpr int kReconnectFirstMs = 50;
inline constexpr int kReconnectMostMs = 500;

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LIMITS_H_
