// Limits of the coordinator (promise 8 of docs/design.md): what one executor,
// one job, or all jobs together may use.
#ifndef MAYPOLE_COORDINATOR_CORE_LIMITS_H_
#define MAYPOLE_COORDINATOR_CORE_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/limits.h"

namespace maypole::coordinator {

inline constexpr size_t kMaxJobs = 1024;
inline constexpr size_t kMaxNodes = 2048;     // executors of a job
inline constexpr size_t kMaxSessions = 8192;  // executors of all jobs
// Names of operations per job that the coordinator knows at a time.
inline constexpr size_t kMaxOperations = kMaxSlots;
// The index of the operation with this id. The table assigns ids so that
// operations that are known at the same time have different indices.
inline constexpr size_t PlaceOf(uint32_t id) {
  return (id - 1) % kMaxOperations;
}
// Operations of a step that the nodes may execute by a schedule (steps.h).
inline constexpr size_t kMaxScheduledOperations = 4096;
// Operations that an executor can report as late in one message.
inline constexpr int kMaxLateOperations = 64;

// Operations of a job whose results are compared at a time; and how many
// differences of an epoch are logged (all are counted).
inline constexpr size_t kMaxComparedResults = 65536;
inline constexpr uint64_t kMaxDifferencesTold = 100;

// Messages to an executor that it has not acknowledged. The session of an
// executor with more of them is ended.
inline constexpr size_t kMaxUnacknowledged = 4096;

// Messages that executors relay (relays.h): the longest; how long a node may
// leave one unacknowledged before the coordinator sends to each node directly
// again; and for how long it then does so.
inline constexpr size_t kMaxRelayedBytes = size_t{256} << 10;
inline constexpr std::chrono::seconds kRelayPatience(1);
inline constexpr std::chrono::seconds kRelayPause(10);

// The first ranks that leave an epoch are announced at once, each in a message
// to all nodes; later ones are announced together, once per kLeavePause.
// Otherwise the end of a job would take ranks x nodes messages.
inline constexpr size_t kLeavesToldAtOnce = 16;
inline constexpr std::chrono::milliseconds kLeavePause(20);

// Memory for a job's messages that wait until it has recovered the state of an
// earlier coordinator.
inline constexpr size_t kMaxHeldBytes = size_t{64} << 20;

// The least time that a node, reconnected to another coordinator, has to send
// its state after its hello.
inline constexpr std::chrono::milliseconds kStateTime{1000};

// A job's stall check and stall shutdown: a year.
inline constexpr int64_t kMaxStallMs = int64_t{1000} * 3600 * 24 * 365;

// Bytes of one message of an executor; gRPC refuses longer ones.
inline constexpr size_t kMaxMessageBytes = kMaxExecutorMessageBytes;
// Bytes of one message to an executor. (The splits of an alltoall of
// kMaxAlltoallRanks ranks take at most 7 MiB.)
inline constexpr size_t kMaxSentBytes = size_t{16} << 20;
// Execute messages are split when they get this long.
inline constexpr size_t kMaxExecuteBytes = size_t{1} << 20;
inline constexpr size_t kMaxAddressBytes = 1024;  // one address of an Endpoint
// A session's and an incarnation's name.
inline constexpr size_t kMaxSessionBytes = 127;
// The greatest number that executors may send for what is counted (epochs,
// decisions, runs, schedules).
inline constexpr uint64_t kMaxNumber = uint64_t{1} << 62;

// Bytes of an executor's text ("how", "message") in the coordinator's errors.
inline constexpr size_t kMaxForeignText = 512;
// What a status shows: pending operations per job, nodes that one of them waits
// for, operations that one rank holds up, and bytes of all details.
inline constexpr int kMaxStatusPending = 256;
inline constexpr int kMaxStatusMissing = 16;
inline constexpr size_t kMaxStatusLateFor = 8;
inline constexpr size_t kMaxStatusBytes = size_t{8} << 20;
// Drained nodes.
inline constexpr size_t kMaxDrained = 4096;
// Events that are kept, and bytes of each event's text.
inline constexpr size_t kMaxEvents = 4096;
inline constexpr size_t kMaxEventBytes = 2048;

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_LIMITS_H_
