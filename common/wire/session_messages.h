// The messages of a rank session: between a training process, its node's agent,
// and the job's executor.
//
// Purpose: fixed, versioned structs over a SOCK_SEQPACKET unix socket (one
// send is one message). They are not protobufs, because libmaypole must bring
// as little as possible into the user's process.
//
//   client                      agent                   executor of the job
//     |-- Hello ------------------>|  checks uid, version, job token
//     |                            |-- hands the connection over --->|
//     |<-- Refused ----------------|  (no common version, uid, token)|
//     |<-- Welcome + board fd + eventfd -----------------------------|
//     |     (when all ranks of the job have connected)  or Refused   |
//     |-- SlotRequest ---------------------------------------------->|
//     |<-- SlotReply ------------------------------------------------|
//     |<-- SlotRecall ------ (slots are short) ----------------------|
//     |-- SlotReturn ----------------------------------------------->|
//     |-- SetRequest, JoinRequest ---------------------------------->|
//     |<-- SetReply, JoinReply (when all ranks have asked) ----------|
//     |-- GpuMemoryRequest (+ the memory's descriptor) ------------->|
//     |<-- GpuMemoryReply -------------------------------------------|
//     |<-- ConnectGpu ------ (ranks that call NCCL themselves) ------|
//     |-- StateRequest (+ a descriptor to keep) ------------------->|
//     |<-- StateReply (+ the descriptor that is kept) --------------|
//     |-- TimelineRequest, TimelineFile (+ its descriptor) --------->|
//     |<-- TimelineReply --------------------------------------------|
//     |-- TimelineRecords ------------------------------------------>|
//     |<-- Notice (a line for the user) -----------------------------|
//     |-- ResultRecords (if checksums are on) --------------------->|
//     |-- Finished (ranks of elastic jobs) ------------------------->|
//     |-- LeaveReason, if an error makes it leave ------------------>|
//     |-- Goodbye -------------------------------------------------->|
//
// After Welcome everything else goes through the board. If the connection
// closes without Goodbye, the rank has died.
//
// Versions (versions.h): Hello announces the client's range: its header's
// version is the oldest, newest_version the newest. Welcome's header has the
// version of the session: the smallest that the node's ranks and its executor
// have in common, which is also the board's. All messages after it have that
// version. Refused has the client's oldest version, so the client can read it.
//
// Every message starts with Header. The offsets of magic and version never
// change, nor do those of rank and newest_version in Hello, so that peers of
// different versions can refuse each other with an error that names both
// ranges.
//
// Thread contract: values and pure functions.
//
// Hostility: a receiver first checks a message with CheckHeader() (size, magic,
// version) and Parse<T>() (type, size, terminated strings).
#ifndef MAYPOLE_COMMON_WIRE_SESSION_MESSAGES_H_
#define MAYPOLE_COMMON_WIRE_SESSION_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/limits.h"
#include "common/status.h"
#include "common/types.h"
#include "common/wire/versions.h"

namespace maypole::session {

inline constexpr uint32_t kMagic = 0x4d41594c;  // "MAYL"
inline constexpr size_t kMaxMessageBytes = 4096;

enum class Type : uint32_t {
  kHello = 1,
  kRefused = 2,
  kWelcome = 3,
  kSlotRequest = 4,
  kSlotReply = 5,
  kGoodbye = 6,
  kSetRequest = 7,
  kSetReply = 8,
  kJoinRequest = 9,
  kJoinReply = 10,
  kNotice = 11,
  kSlotRecall = 12,
  kSlotReturn = 13,
  kGpuMemoryRequest = 14,
  kGpuMemoryReply = 15,
  kConnectGpu = 16,
  kResultRecords = 17,
  kStateRequest = 18,
  kStateReply = 19,
  kTimelineRequest = 20,
  kTimelineReply = 21,
  kTimelineFile = 22,
  kTimelineRecords = 23,
  kFinished = 24,
  kLeaveReason = 25,
};

struct Header {
  uint32_t magic = kMagic;
  uint32_t version = kProtocolVersion;
  Type type;
  uint32_t size;  // of the whole message
};

// Job variables may follow (job_variables.h).
struct Hello {
  static constexpr Type kType = Type::kHello;
  Header header;
  int32_t rank = 0;
  int32_t size = 1;
  int32_t local_rank = 0;
  int32_t local_size = 1;
  int32_t cross_rank = 0;
  int32_t cross_size = 1;
  // In the client's own PID namespace; used only in messages to the user.
  int32_t pid = 0;
  // 1: elastic, ranks are assigned at the start of the epoch. Then `rank` is
  // the process's rank in its last epoch, and the other five above are ignored.
  uint32_t elastic = 0;
  uint64_t last_epoch = 0;  // elastic; 0: the process is new
  int32_t min_size = 0;     // elastic: how many ranks an epoch may have
  int32_t max_size = 0;
  // Bytes, from the rank's environment; -1 if not set.
  int64_t fusion_threshold = -1;
  // After how many milliseconds a straggler is reported, and after how many it
  // ends the epoch; from the rank's environment. -1 if not set, 0: never.
  int64_t stall_check_ms = -1;
  int64_t stall_shutdown_ms = -1;
  // How many milliseconds the rank waits for the start; -1 if not set.
  int64_t start_timeout_ms = -1;
  uint32_t checksums = 0;  // ChecksumMode that the rank wants
  uint32_t newest_version = kProtocolVersion;
  char job[kMaxJobBytes + 1] = {};
  char token[kMaxTokenBytes + 1] = {};
  char host[kMaxHostBytes + 1] = {};
};

static_assert(offsetof(Header, magic) == 0 && offsetof(Header, version) == 4);
static_assert(offsetof(Hello, rank) == 16 &&
              offsetof(Hello, newest_version) == 100);

struct Refused {
  static constexpr Type kType = Type::kRefused;
  Header header;
  uint32_t code = 0;  // Code
  uint32_t reserved = 0;
  char text[kMaxErrorBytes + 1] = {};
};

// Carries two descriptors: the board, the executor's eventfd.
struct Welcome {
  static constexpr Type kType = Type::kWelcome;
  Header header;
  uint64_t epoch = 0;
  uint32_t local_rank = 0;
  uint32_t checksums = 0;  // ChecksumMode of the job
};

struct SlotRequest {
  static constexpr Type kType = Type::kSlotRequest;
  Header header;
  uint32_t request = 0;  // chosen by the client, returned in the reply
  uint32_t process_set = 0;
  uint32_t kind = 0;  // Kind
  uint32_t reserved = 0;
  char name[kMaxNameBytes + 1] = {};
};

struct SlotReply {
  static constexpr Type kType = Type::kSlotReply;
  Header header;
  uint32_t request = 0;
  uint32_t slot = 0;
  uint32_t negotiated = 0;  // 1: the process set has members on other nodes
  uint32_t code = 0;        // Code; if not kOk, `text` says why
  char text[kMaxErrorBytes + 1] = {};
};

// The executor needs slots: the rank must return those of these slots that none
// of its operations uses, and forget their names. (RankBlock.recalls counts the
// recalls.)
struct SlotRecall {
  static constexpr Type kType = Type::kSlotRecall;
  Header header;
  uint32_t count = 0;
  uint32_t reserved = 0;
  uint32_t slots[kMaxRecall] = {};
};

// Answers one SlotRecall, in order, with the slots that the rank has forgotten.
struct SlotReturn {
  static constexpr Type kType = Type::kSlotReturn;
  Header header;
  uint32_t count = 0;
  uint32_t reserved = 0;
  uint32_t slots[kMaxRecall] = {};
};

// Creates or removes a process set. Every rank sends the same requests in the
// same order: the n-th requests of all ranks belong together. With by_members
// only the set's members send it, and it is matched by the set's members;
// `number` then counts the rank's requests of this form.
struct SetRequest {
  static constexpr Type kType = Type::kSetRequest;
  Header header;
  uint32_t number = 0;       // n, from 1
  uint32_t remove = 0;       // 1: remove process_set; 0: create from members
  uint32_t process_set = 0;  // the set to remove
  uint32_t by_members = 0;
  uint64_t members[kMaxRanks / 64] = {};  // bit r: global rank r
};

struct SetReply {
  static constexpr Type kType = Type::kSetReply;
  Header header;
  uint32_t number = 0;
  uint32_t process_set = 0;  // the set created or removed
  uint32_t code = 0;         // Code; if not kOk, `text` says why
  uint32_t by_members = 0;   // as in the request
  char text[kMaxErrorBytes + 1] = {};
};

// The rank's n-th join. Sent when the join begins: from now on the rank stands
// aside (RankBlock.aside is set) and takes part in the others' operations
// without input. Sent again with `settled` when none of the operations that it
// submitted before is pending.
struct JoinRequest {
  static constexpr Type kType = Type::kJoinRequest;
  Header header;
  uint32_t number = 0;  // n, from 1
  uint32_t settled = 0;
};

// All ranks have joined and settled.
struct JoinReply {
  static constexpr Type kType = Type::kJoinReply;
  Header header;
  uint32_t number = 0;
  int32_t last_rank = 0;  // the last rank that joined
  uint32_t code = 0;      // Code; if not kOk, `text` says why
  uint32_t reserved = 0;
  char text[kMaxErrorBytes + 1] = {};
};

// The client writes the text to its stderr, unchanged, as one line.
struct Notice {
  static constexpr Type kType = Type::kNotice;
  Header header;
  char text[kMaxErrorBytes + 1] = {};
};

// How a rank and the executor share memory of a GPU.
enum class GpuSharing : uint32_t {
  kDescriptor = 1,  // the rank's (cuMemCreate); the request carries it
  kIpcHandle = 2,   // the executor's (cuMemAlloc); the reply carries its handle
  // No memory is shared: the rank itself calls NCCL, on its own tensors on this
  // GPU. `bytes` and `proof` are 0. The GpuPlace of a tensor (gpu_place.h) only
  // says which GPU it is on; its offset is 0.
  kOwn = 3,
};

// The rank wants to share memory of a GPU with the executor, which then reduces
// tensors there (docs/design.md, section 6). The n-th request of a rank is
// about its memory number n.
struct GpuMemoryRequest {
  static constexpr Type kType = Type::kGpuMemoryRequest;
  Header header;
  uint32_t number = 0;   // n, from 1 to kMaxGpuMemories
  uint32_t sharing = 0;  // GpuSharing
  uint64_t bytes = 0;    // at most kMaxGpuMemoryBytes
  // A number that the executor's GPU writes to the memory's first 8 bytes, so
  // that the rank sees that both use the same memory.
  uint64_t proof = 0;
  uint8_t uuid[16] = {};  // of the GPU
  // kOwn: the rank's NCCL version, which must be the executors'.
  uint32_t nccl_version = 0;
  uint32_t reserved = 0;
};

// The memory can be used; if `code` is not kOk it cannot, and `text` says why.
struct GpuMemoryReply {
  static constexpr Type kType = Type::kGpuMemoryReply;
  Header header;
  uint32_t number = 0;
  uint32_t gpu = 0;  // the executor's number of the GPU, below kMaxGpus
  uint32_t code = 0;
  uint32_t reserved = 0;
  uint8_t handle[64] = {};  // GpuSharing::kIpcHandle: a CUipcMemHandle
  char text[kMaxErrorBytes + 1] = {};
};

// The rank's GPU belongs to a communicator that has an NCCL rank for each
// member of a process set, in its order. It is connected when a run first needs
// it (PlanHeader.communicator); that run may come before this message.
struct ConnectGpu {
  static constexpr Type kType = Type::kConnectGpu;
  Header header;
  uint32_t number = 0;  // in the epoch, from 1 to kMaxGpuCommunicators
  uint32_t size = 0;    // ranks
  uint32_t rank = 0;    // NCCL rank of the receiver
  uint32_t gpu = 0;     // the receiver's GPU, by the executor's number
  uint32_t id_bytes = 0;
  uint32_t reserved = 0;
  char id[kMaxCommunicatorIdBytes] = {};  // NCCL's unique id
};

// A rank's copy of a result.
struct ResultRecord {
  // For `bytes`: the rank has no copy in host memory. (The operation has
  // failed, the rank stands aside, or the result lies on a GPU.)
  static constexpr uint64_t kNoResult = UINT64_MAX;

  uint32_t slot = 0;
  uint32_t generation = 0;
  uint64_t bytes = 0;
  uint32_t checksum = 0;  // see common/checksum/checksum.h
  uint32_t reserved = 0;
};

// The rank's copies of results that should be equal on all ranks, in the order
// in which the operations ended.
struct ResultRecords {
  static constexpr Type kType = Type::kResultRecords;
  Header header;
  uint32_t count = 0;
  uint32_t dropped = 0;  // records since the last message that are lost
  ResultRecord records[kMaxResultRecords] = {};
};

enum class StateCall : uint32_t {
  // Keeps the descriptor that comes with the request: a memfd that can neither
  // shrink nor grow. It replaces the one of this name, if there is one.
  kKeep = 1,
  kFind = 2,  // the reply carries the descriptor, or its code is kNotFound
  kDrop = 3,  // not an error if there is none of this name
};

// Memory that the executor holds for the job, so that it survives the ranks.
// Executors do not read it.
struct StateRequest {
  static constexpr Type kType = Type::kStateRequest;
  Header header;
  uint32_t number = 0;  // chosen by the client, returned in the reply
  uint32_t call = 0;    // StateCall
  char name[kMaxStateNameBytes + 1] = {};
};

struct StateReply {
  static constexpr Type kType = Type::kStateReply;
  Header header;
  uint32_t number = 0;
  uint32_t code = 0;  // Code; if not kOk, `text` says why
  char text[kMaxErrorBytes + 1] = {};
};

// The rank wants the job's timeline to start, or the one with this number to
// stop (docs/timeline.md). Answered when it is on, or its file is complete.
struct TimelineRequest {
  static constexpr Type kType = Type::kTimelineRequest;
  Header header;
  uint32_t stop = 0;
  uint32_t mark_cycles = 0;
  uint32_t number = 0;  // stop: of the timeline
  uint32_t reserved = 0;
  char path[kMaxShownPathBytes + 1] = {};  // start: shown to other ranks
};

// Start: timeline `number` is on. If `writer` is 1, the rank must open the file
// and send it as TimelineFile; otherwise rank `rank` of the job writes it.
struct TimelineReply {
  static constexpr Type kType = Type::kTimelineReply;
  Header header;
  uint32_t stop = 0;  // as in the request
  uint32_t number = 0;
  uint32_t writer = 0;
  uint32_t rank = 0;
  uint32_t code = 0;  // Code; if not kOk, `text` says why
  uint32_t reserved = 0;
  char path[kMaxShownPathBytes + 1] = {};
  char text[kMaxErrorBytes + 1] = {};
};

// Carries the file's descriptor, which the executor writes to.
struct TimelineFile {
  static constexpr Type kType = Type::kTimelineFile;
  Header header;
  uint32_t number = 0;  // of the timeline
  uint32_t reserved = 0;
};

// What the rank has recorded (common/timeline/record.h). Only `bytes` of `data`
// are sent.
struct TimelineRecords {
  static constexpr Type kType = Type::kTimelineRecords;
  Header header;
  uint32_t number = 0;   // of the timeline
  uint32_t last = 0;     // 1: the timeline is off, and nothing follows
  uint32_t dropped = 0;  // records lost since the last message
  uint32_t bytes = 0;    // a multiple of 8
  uint8_t data[2016] = {};
};

// A rank of an elastic job has trained to the end, or begins another training
// after that. The last such message counts when the rank leaves.
struct Finished {
  static constexpr Type kType = Type::kFinished;
  Header header;
  uint32_t finished = 1;
  uint32_t reserved = 0;
};

// Why the Goodbye that follows leaves operations unfinished: the error that has
// ended the job on this rank. Without this message, the user's program has
// left.
struct LeaveReason {
  static constexpr Type kType = Type::kLeaveReason;
  Header header;
  char text[kMaxErrorBytes + 1] = {};
};

struct Goodbye {
  static constexpr Type kType = Type::kGoodbye;
  Header header;
  uint32_t pending = 0;  // operations that the rank leaves unfinished
  uint32_t returns = 0;  // elastic; 1: the process intends to connect again
};

template <typename T>
T Make() {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(sizeof(T) <= kMaxMessageBytes && sizeof(T) % 8 == 0);
  T m{};
  m.header.magic = kMagic;
  m.header.version = kProtocolVersion;
  m.header.type = T::kType;
  m.header.size = sizeof(T);
  return m;
}

// Sets the version of any message.
inline void SetVersion(void* message, uint32_t version) {
  std::memcpy(static_cast<char*>(message) + offsetof(Header, version), &version,
              sizeof(version));
}

// The version range of the client that sent it.
inline VersionRange VersionsOf(const Hello& hello) {
  return {hello.header.version, hello.newest_version};
}

// Copies `text` into a fixed field, truncated to fit, always zero-terminated.
template <size_t N>
void SetText(char (&field)[N], std::string_view text) {
  const size_t n = text.size() < N ? text.size() : N - 1;
  std::memcpy(field, text.data(), n);
  std::memset(field + n, 0, N - n);
}

// True if the field contains a terminating zero.
template <size_t N>
bool Ends(const char (&field)[N]) {
  return std::memchr(field, 0, N) != nullptr;
}

// Checks magic, version and size of a received message that is not a Hello.
// `peer` names the sender in the error: "client", or "agent", "executor".
Status CheckHeader(const void* data, size_t bytes, std::string_view peer);

// Checks magic, versions and size of a client's first message: a Hello and what
// follows it (together at most `most` bytes). `agent`: this side, which the
// error names.
Status CheckHelloHeader(const void* data, size_t bytes, const Speaker& agent,
                        size_t most);

// The type of a message that passed CheckHeader.
Type TypeOf(const void* data);

// Copies a message that passed CheckHeader into its struct; checks its type and
// that all its strings are terminated.
template <typename T>
Status Parse(const void* data, size_t bytes, T* out);

template <>
Status Parse(const void* data, size_t bytes, TimelineRecords* out);

// Sets the header for the bytes that will be sent, and returns their number.
size_t Trim(TimelineRecords* message);

}  // namespace maypole::session

#endif  // MAYPOLE_COMMON_WIRE_SESSION_MESSAGES_H_
