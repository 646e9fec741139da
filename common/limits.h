// Limits that clients, executors and the coordinator have in common.
//
// Every queue, table and message of Maypole has a named bound (promise 8 of
// docs/design.md). Bounds that concern only one part are defined in that part.
#ifndef MAYPOLE_COMMON_LIMITS_H_
#define MAYPOLE_COMMON_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace maypole {

// The newest version of the protocol (session structs, the board's layout,
// messages between executors and coordinators), and the oldest that this build
// still speaks. common/wire/versions.h explains how peers of different versions
// agree.
inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr uint32_t kOldestProtocolVersion = 1;

inline constexpr int kMaxDims = 8;            // dimensions of a tensor
inline constexpr size_t kMaxNameBytes = 511;  // an operation's name
inline constexpr size_t kMaxJobBytes = 63;    // a job's id
inline constexpr int64_t kMaxStartTimeoutMs = 86'400'000;  // a day
inline constexpr size_t kMaxTokenBytes = 127;              // a job's token
inline constexpr size_t kMaxHostBytes = 63;  // a host's or node's name
// The size limit of a rank's variables NCCL_* and CUDA_*
// (common/wire/job_variables.h).
inline constexpr size_t kMaxVariablesBytes = 64 * 1024;
inline constexpr size_t kMaxErrorBytes = 1023;      // one error's text
inline constexpr int kMaxRanks = 16384;             // ranks of a job
inline constexpr int kMaxLocalRanks = 64;           // ranks of a job on a node
inline constexpr uint32_t kMaxSlots = 16384;        // names in use at a time
inline constexpr uint32_t kMaxRuns = 256;           // negotiated runs in flight
inline constexpr uint32_t kMaxRunOperations = 512;  // operations fused in a run
// The same for a run that GPUs of several nodes execute. On each GPU it may
// take a kernel before NCCL, one of NCCL's, one after it and a copy for each
// operation (a reducescatter is not fused: it may take one of NCCL's for each
// member).
// A driver takes about 1,000 launches before it waits for the GPU, which may
// wait for another node: then the executor could not even abort NCCL.
inline constexpr uint32_t kMaxGpuRunOperations = 128;
inline constexpr uint32_t kTicketCells = 65536;  // at least 2 x (slots + runs)
// Names for unnamed operations, per kind: in the set of all ranks, and in any
// other process set.
inline constexpr uint32_t kUnnamedSlots = 256;
inline constexpr uint32_t kUnnamedSlotsOfASet = 32;
inline constexpr uint32_t kMaxRecall = 256;  // slots in one SlotRecall
// Checksums in one ResultRecords message; then, records that a rank keeps while
// its executor does not read.
inline constexpr uint32_t kMaxResultRecords = 80;
inline constexpr size_t kMaxKeptResultRecords = 8192;
// Unanswered SetRequests of one rank.
inline constexpr uint32_t kMaxSetRequests = 256;
// Process sets made during an epoch, including removed ones.
inline constexpr uint32_t kMaxProcessSets = 1024;
inline constexpr uint32_t kMaxSplitNames = 512;  // alltoall names in use
// Ranks of an alltoall that spans several nodes.
inline constexpr int kMaxAlltoallRanks = 1024;
// Alltoalls in flight that span several nodes.
inline constexpr uint32_t kMatrices = 2;
inline constexpr uint64_t kMaxArenaBytes = uint64_t{1} << 40;  // per rank
// GPU memory that ranks and their executor share (common/board/gpu_place.h).
inline constexpr uint32_t kMaxGpus = 64;          // of a job on a node
inline constexpr uint32_t kMaxGpuMemories = 256;  // of a rank
inline constexpr size_t kGpuUuidBytes = 16;
inline constexpr uint64_t kMaxGpuMemoryBytes = uint64_t{1} << 40;  // of one
// Groups of GPUs that reduce together, in one epoch: over several nodes, and on
// one node alone (8 GPUs have 247 groups of two or more). Then, the bytes of
// NCCL's unique id.
inline constexpr uint32_t kMaxCommunicators = 32;
inline constexpr uint32_t kMaxLocalCommunicators = 256;
inline constexpr size_t kMaxCommunicatorIdBytes = 1024;
// States that the executor keeps for a job (docs/elastic.md), and a state's
// name.
inline constexpr size_t kMaxKeptStates = 16;
inline constexpr size_t kMaxStateNameBytes = 63;
// The path of a timeline's file, as it is shown to other ranks.
inline constexpr size_t kMaxShownPathBytes = 511;
inline constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 44;
// One message of an executor to the coordinator; gRPC refuses longer ones.
inline constexpr size_t kMaxExecutorMessageBytes = size_t{4} << 20;
// A NodeState (proto/recovery.proto), in all its parts. It has the sizes of
// the last alltoalls that other nodes may not know: kMatrices in flight and as
// many before, of at most 7 MiB each.
inline constexpr size_t kMaxNodeStateBytes = size_t{64} << 20;

static_assert(kTicketCells >= 2 * (kMaxSlots + kMaxRuns));
static_assert(kMaxGpuRunOperations <= kMaxRunOperations);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_LIMITS_H_
