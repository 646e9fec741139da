// Limits of the coordinator (promise 8 of docs/design.md): what one executor,
// one job or all of them together may cost it.
#ifndef MAYPOLE_COORDINATOR_CORE_LIMITS_H_
#define MAYPOLE_COORDINATOR_CORE_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "common/limits.h"

namespace maypole::coordinator {

inline constexpr size_t kMaxJobs = 1024;
inline constexpr size_t kMaxNodes = 1024;     // executors of a job
inline constexpr size_t kMaxSessions = 4096;  // executors of all jobs
// Names of a job's operations that are known at a time.
inline constexpr size_t kMaxOperations = kMaxSlots;
// Where the operation of an id stands among those that are known: ids of
// operations that are known at the same time have different places.
inline constexpr size_t PlaceOf(uint32_t id) {
  return (id - 1) % kMaxOperations;
}
// Operations that an executor names as late.
inline constexpr int kMaxLateOperations = 64;

// Messages to an executor that it has not acknowledged. One that is this far
// behind is given up.
inline constexpr size_t kMaxUnacknowledged = 4096;

// Bytes of one message of an executor; gRPC refuses longer ones.
inline constexpr size_t kMaxMessageBytes = size_t{4} << 20;
// And of one to an executor: the splits of an alltoall of kMaxAlltoallRanks
// ranks are 7 MiB at most.
inline constexpr size_t kMaxSentBytes = size_t{16} << 20;
// Execute messages are cut when they get this long.
inline constexpr size_t kMaxExecuteBytes = size_t{1} << 20;
inline constexpr size_t kMaxAddressBytes = 1024;  // one address of an Endpoint

// Text of an executor ("how", "message") that goes into an error of ours.
inline constexpr size_t kMaxForeignText = 512;
// What a status shows: pending operations of a job, nodes that one of them
// waits for, operations that one rank holds up; bytes of details in all.
inline constexpr int kMaxStatusPending = 256;
inline constexpr int kMaxStatusMissing = 16;
inline constexpr size_t kMaxStatusLateFor = 8;
inline constexpr size_t kMaxStatusBytes = size_t{8} << 20;
// Nodes that are drained.
inline constexpr size_t kMaxDrained = 4096;
// Events that are remembered, and bytes of each one's text.
inline constexpr size_t kMaxEvents = 4096;
inline constexpr size_t kMaxEventBytes = 2048;

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_LIMITS_H_
