// Limits of what clients, executors and the coordinator share.
//
// Every queue, table and message of Maypole has a bound with a name (promise 8
// of docs/design.md). Those that concern one part alone stand in that part.
#ifndef MAYPOLE_COMMON_LIMITS_H_
#define MAYPOLE_COMMON_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace maypole {

// Version of the session structs and of the board's layout. Both sides must
// run the same one; a peer of another version is refused, both being named.
inline constexpr uint32_t kProtocolVersion = 4;

inline constexpr int kMaxDims = 8;            // dimensions of a tensor
inline constexpr size_t kMaxNameBytes = 511;  // an operation's name
inline constexpr size_t kMaxJobBytes = 63;    // a job's id
inline constexpr int64_t kMaxStartTimeoutMs = 86'400'000;  // a day
inline constexpr size_t kMaxTokenBytes = 127;              // a job's token
inline constexpr size_t kMaxHostBytes = 63;         // a host's or node's name
inline constexpr size_t kMaxErrorBytes = 1023;      // one error's text
inline constexpr int kMaxRanks = 4096;              // ranks of a job
inline constexpr int kMaxLocalRanks = 64;           // ranks of a job on a node
inline constexpr uint32_t kMaxSlots = 16384;        // names in use at a time
inline constexpr uint32_t kMaxRuns = 256;           // negotiated runs in flight
inline constexpr uint32_t kMaxRunOperations = 512;  // operations fused in a run
inline constexpr uint32_t kTicketCells = 65536;  // at least 2 x (slots + runs)
// Names of unnamed operations per kind: of the set of all ranks, of another.
inline constexpr uint32_t kUnnamedSlots = 256;
inline constexpr uint32_t kUnnamedSlotsOfASet = 32;
inline constexpr uint32_t kMaxRecall = 256;        // slots of one SlotRecall
inline constexpr uint32_t kMaxSetRequests = 256;   // of a rank, unanswered
inline constexpr uint32_t kMaxProcessSets = 1024;  // of an epoch, removed too
inline constexpr uint32_t kMaxSplitNames = 512;    // of alltoalls, at a time
inline constexpr int kMaxAlltoallRanks = 1024;     // over several nodes
inline constexpr uint32_t kMatrices = 2;  // alltoalls over nodes in flight
inline constexpr uint64_t kMaxArenaBytes = uint64_t{1} << 40;  // of a rank
inline constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 44;

static_assert(kTicketCells >= 2 * (kMaxSlots + kMaxRuns));

}  // namespace maypole

#endif  // MAYPOLE_COMMON_LIMITS_H_
