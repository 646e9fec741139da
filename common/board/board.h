// Board: the shared memory through which the ranks of a node cooperate.
//
// Purpose: one sealed memfd per job, node and epoch holds the slots (who has
// submitted what), the ticket ring (in which order operations run), the
// progress of running operations and the rings through which data moves. This
// file defines the layout and the few atomic protocols on it. Ranks use it in
// client/engine/progress_engine.h, the executor in worker/executor/.
// docs/board.md argues why the protocols are correct.
//
//   +----------------+  header: constants, abort word, executor's sleep flag
//   | BoardHeader    |
//   | RankBlock   x k|  k local ranks: state, wake word, counters
//   | tickets     x T|  one word each: lap and run reference
//   | ready   x S/64 |  bit s: slot s is ready (all local ranks have arrived)
//   | Slot        x S|  identity, error text, one Arrival per local rank
//   | Run     x (S+R)|  outcome and progress; run s < S runs slot s alone,
//   | Plan        x R|  run S+n is a negotiated run: Plan n lists its slots
//   | splits         |  each rank's splits, by alltoall name
//   | matrices       |  all ranks' splits of an alltoall over nodes, by run
//   | pools       x k|  pool_buffers of eager_bytes each, for eager operations
//   | rank rings  x k|  ring_depth chunks each, written by their rank only
//   | node ring      |  ring_depth chunks, written by executor and local ranks
//   | arenas      x k|  arena_bytes of address space each
//   +----------------+  (client/memory/arena.h)
//
// Generations: a rank's n-th submission of a name has generation base + n in
// the name's slot; submissions with equal generations form one operation.
// `base` is 0 for the slot's first name; for a later name it is greater than
// all generations of the names before. A rank submits generation g+1 only when
// g has completed for it, so a reader that looks for g finds g or (if the
// reader itself is late) something newer, never something older.
//
// Writers, and the order of their writes:
//   Arrival.signature   its rank, before Arrival.generation
//   Arrival.generation  its rank, seq_cst (the scan that follows must see all
//                       generations that were published before)
//   ticket cell         any rank that sees that all members have arrived, or
//                       the executor: CAS into the first empty cell
//   pool buffer         its rank before it arrives; then, if it becomes the
//                       result, the rank (or the executor, for several nodes)
//                       that has claimed the reduction
//   Run.outcome         any process: CAS, the first one per generation wins
//   Progress            its rank; release, read with acquire
//   Run.granted, done   the executor; release, read with acquire
//   Plan                the executor, before the ticket that publishes it
//   splits              its rank, before Arrival.generation
//   slot's members, ..  the executor, before SlotHeader.identity; once per
//                       name, while no rank knows the slot's number
//                       (docs/board.md)
//   slot's wanted       the executor: ranks that stand aside must submit it
//   abort               the executor, which places no ticket of a negotiated
//                       run afterwards; or a client, if the executor is gone or
//                       the client itself cannot continue
//
// Thread contract: all shared words that change are std::atomic, or published
// by one; the class itself is immutable after Create/Attach, and any thread may
// use it.
//
// Hostility: the executor must copy what it reads, then check the copy. Sizes
// and offsets come from the process's own copy of the config, never from the
// header. A client trusts its executor (same user, one job).
#ifndef MAYPOLE_COMMON_BOARD_BOARD_H_
#define MAYPOLE_COMMON_BOARD_BOARD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/limits.h"
#include "common/status.h"
#include "common/system/fd.h"
#include "common/system/memory.h"
#include "common/types.h"
#include "common/wire/signature.h"

namespace maypole {

// Slots are reserved in groups of this size, which fill whole pages of 4096
// bytes for any number of ranks. If pages are larger, neighbouring groups share
// a page, which is then reserved twice.
inline constexpr uint32_t kSlotStep = 64;

inline constexpr uint64_t kBoardMagic = 0x6d6179706f6c6531;  // "maypole1"

inline constexpr uint32_t kMaxRingDepth = 64;

// Constants of one board, fixed when it is created. CheckConfig refuses values
// outside the limits (common/limits.h).
struct BoardConfig {
  uint64_t epoch = 0;
  uint32_t size = 1;        // ranks of the job
  uint32_t local_size = 1;  // ranks of the job on this node
  uint32_t nodes = 1;
  uint32_t node_index = 0;
  uint32_t slots = kMaxSlots;
  uint32_t runs = kMaxRuns;
  uint32_t chunk_bytes = 1 << 20;    // a multiple of 4096
  uint32_t ring_depth = 2;           // chunks of a ring, at least 2
  uint32_t eager_bytes = 64 * 1024;  // largest eager tensor; multiple of 64
  uint32_t pool_buffers = 32;        // eager operations of a rank in flight
  // Address space for one rank's arena tensors. Memory is reserved as tensors
  // are allocated.
  uint64_t arena_bytes = 0;
  // 1: the executors of all nodes have NCCL, so GPUs can reduce together.
  uint32_t gpu_communicators = 0;

  int32_t global_rank[kMaxLocalRanks] = {};  // by local rank
  // The parts of the board begin at multiples of this: the kernel's page size,
  // or (in tests) a multiple of it.
  uint32_t page_bytes = static_cast<uint32_t>(PageBytes());
};

Status CheckConfig(const BoardConfig& config);

// A rank's membership in the epoch.
enum class RankState : uint32_t { kAbsent = 0, kPresent = 1, kLeft = 2 };

struct alignas(64) BoardHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  BoardConfig config;
  // 0 while the epoch lives; afterwards the Code of the error that ended it.
  // The process that won abort_claim writes the text, then the code (seq_cst).
  alignas(64) std::atomic<uint32_t> abort_code;
  std::atomic<uint32_t> abort_claim;
  char abort_text[kMaxErrorBytes + 1];
  // How many ranks of the whole job have left by shutdown; the text names the
  // first. 0 while no rank has left.
  std::atomic<uint32_t> left_count;
  char left_text[kMaxErrorBytes + 1];
  // Incremented after an operation's outcome has become kFailed, so that
  // progress engines check for failures.
  std::atomic<uint32_t> failures;
  // All slots in use have numbers below this.
  std::atomic<uint32_t> allotted;
  // Number of local ranks that stand aside (have joined). While it is not 0, a
  // rank that arrives wakes them.
  std::atomic<uint32_t> aside_count;
  // Elastic jobs: how many ranks want to enter or leave. While it is not 0, the
  // epoch's ranks should leave when it suits them. Written by the executor.
  std::atomic<uint32_t> change_wanted;
  // Runs on GPUs that have begun and not ended. Incremented by the executor
  // before it checks for an abort, so an idle GPU stays idle after one.
  std::atomic<uint32_t> gpu_runs;
  // The job's timeline: its number * 2, + 1 while it is on. A rank records the
  // operations that it submits while this is odd. Written by the executor.
  std::atomic<uint32_t> timeline;
  alignas(64) std::atomic<uint32_t> executor_sleeping;
  // The futex word on which the executor's network thread sleeps.
  alignas(64) std::atomic<uint32_t> network_wake;
  std::atomic<uint32_t> network_sleeping;
};

// What a rank was waiting for when it slept; see RankCounters.
enum class WaitFor : uint32_t {
  kRanks = 0,  // a rank of this node had not submitted the operation
  kNodes = 1,  // all ranks of this node had: it waits for other nodes, or for
               // the coordinator's order
  kData = 2,   // the operation is running: its data moves
  kAgent = 3,  // the executor's answer to a request for a slot or process set
  kInput = 4,  // this rank's own input, which a GPU is still writing
};
inline constexpr int kWaitFors = 5;

// A rank's counters, which the executor reads periodically for its metrics.
// Only the rank's own threads write them, relaxed; no protocol relies on them.
// Each starts at 0 with the epoch and only grows.
struct alignas(64) RankCounters {
  using Counter = std::atomic<uint64_t>;
  // Operations within the node that have succeeded, and the bytes of their
  // results. Only the first local member of the process set counts them, so
  // that each is counted once per node.
  Counter operations[kKinds];
  Counter operation_bytes[kKinds];
  // Operations that this rank has failed for all because of a mismatch.
  Counter mismatches;
  // Waits for operations in which the rank slept, by what it slept for first;
  // and how long it slept.
  alignas(64) Counter waits[kWaitFors];
  Counter wait_ns[kWaitFors];
  // How long this rank has slept waiting for each local rank.
  Counter waited_for_ns[kMaxLocalRanks];
};

// Adds n to a counter. All writes to the counter must hold the same lock.
inline void Grow(RankCounters::Counter& counter, uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n,
                std::memory_order_relaxed);
}

struct alignas(64) RankBlock {
  std::atomic<uint32_t> wake;  // futex word, incremented to wake the rank
  // Set by the sleeper, cleared by the waker: 0, kRankSleeps or kWaitersSleep.
  std::atomic<uint32_t> sleeping;
  std::atomic<uint32_t> state;  // RankState, written by the executor
  std::atomic<int32_t> pid;     // in the executor's PID namespace; or 0
  // The number of the join in which the rank stands aside; 0 if it does not.
  // Seq_cst, ordered against arrivals as left_count is.
  std::atomic<uint32_t> aside;
  // Position of the next ticket that the rank will read, + 1; kAllRead while
  // none of its operations waits for a ticket. Updated only occasionally: see
  // PlaceTicket.
  alignas(64) std::atomic<uint64_t> tickets_read;
  // Grows while the rank's threads work on operations: at least every
  // kHeartbeatMs while the rank has unfinished operations.
  std::atomic<uint32_t> heartbeat;
  // Incremented for each SlotRecall that the executor has sent the rank.
  std::atomic<uint32_t> recalls;
  // What the rank waits for without a time limit: Tagged(generation, slot),
  // kBlockedInJoin or kBlockedForSet. Written before blocked_count becomes odd.
  std::atomic<uint64_t> blocked_on;
  // Incremented at each change. Odd: the only thread of the rank that uses
  // Maypole waits, and has found nothing to do for a while.
  std::atomic<uint64_t> blocked_count;
  // How much of each arena the rank has mapped, + 1; 0 means all. Written once,
  // before the rank's first arrival.
  std::atomic<uint64_t> arena_limit;
  // Hash of the UUID of the GPU that the rank's last CUDA tensor was on; 0: it
  // has submitted none. For a hint to users only.
  std::atomic<uint64_t> gpu;
  // The core on which a thread of the rank waits, or began its last wait, + 1;
  // kNoCore while it sleeps. A hint (client/session/core_hints.h), in a cache
  // line that is written only when it changes.
  alignas(64) std::atomic<uint32_t> core;
  RankCounters counters;
};
// Any one thread of the rank must be woken to move data.
inline constexpr uint32_t kRankSleeps = 1;
// A thread that waits for an operation is the driver thread, and must be woken.
// The progress thread, which sleeps on the same word, need not be.
inline constexpr uint32_t kWaitersSleep = 2;
inline constexpr uint64_t kAllRead = 0;
inline constexpr uint32_t kNoCore = 0;
inline constexpr int kHeartbeatMs = 100;
inline constexpr uint64_t kBlockedInJoin = UINT64_MAX;
inline constexpr uint64_t kBlockedForSet = UINT64_MAX - 1;

// What a rank supplies with its submission for an eager operation
// (client/engine/eager.h): the number of its pool buffer, or one of these.
// No buffer: the operation must use rendezvous.
inline constexpr int kNoBuffer = -1;
// No buffer: the rank arrived last and reads its input from its own memory.
inline constexpr int kOwnInput = -2;
inline constexpr int kNothing = -3;  // the operation needs no input from it

// What a rank submits with one generation.
struct Submission {
  std::atomic<uint64_t> signature[sizeof(Signature) / 8];
  // Offset of the tensor in the rank's arena, + 1; it is reduced in place.
  // 0 if the tensor is not in the arena.
  std::atomic<uint64_t> arena;
  // Where the tensor lies in GPU memory (common/board/gpu_place.h); or 0.
  std::atomic<uint64_t> gpu_place;
  // Allgather, alltoall: bytes behind it that the result may take.
  std::atomic<uint64_t> gpu_room;
  std::atomic<uint32_t> eager_input;  // pool buffer or kNoBuffer.., + 3
};

// A rank can be one generation ahead of a slow rank that still reads the
// previous submission, but never two. So there are two places, chosen by the
// generation's parity.
struct alignas(128) Arrival {
  std::atomic<uint32_t> generation;
  Submission submissions[2];
};

struct alignas(64) SlotHeader {
  // IdentityHash, written by the executor; 0 if the slot is free.
  std::atomic<uint64_t> identity;
  // Which operation the slot is for. Written before `identity`, and constant
  // while `identity` is set.
  std::atomic<uint64_t> members;  // bit i: local rank i is in the process set
  std::atomic<uint32_t> process_set;
  std::atomic<uint32_t> kind;
  std::atomic<uint32_t> splits;  // alltoall: number of its splits, + 1; else 0
  std::atomic<uint32_t> base;    // the name's first generation is base + 1
  std::atomic<uint64_t> name[(kMaxNameBytes + 1) / 8];
  // Tagged(generation, 1): members that stand aside must submit this
  // generation, because no rank of this node will. wanted_signature is written
  // before it.
  std::atomic<uint64_t> wanted;
  std::atomic<uint64_t> wanted_signature[sizeof(Signature) / 8];
  std::atomic<uint64_t> urgency;  // Tagged; see common/board/urgent.h
  // 1: ranks that submit the operation copy their inputs to pool buffers if
  // they can, because the executor itself sends the inputs of small operations
  // of several nodes to the other nodes. Written by the executor at any time.
  std::atomic<uint32_t> wants_copies;
  // Tagged(generation, 1): GPUs execute this generation, or have done so.
  // Written by the executor, before the outcome: a committed generation has its
  // result on the GPUs if this word names it.
  std::atomic<uint64_t> on_gpus;
  std::atomic<uint64_t> error[(kMaxErrorBytes + 1) / 8];
};

enum class Outcome : uint8_t {
  kRunning = 0,  // or not yet begun
  kFailing = 1,  // a process is writing the error text
  kFailed = 2,   // the error text is in the slot
  kCommitted = 3,
  kAborted = 4,   // the error text is in the header
  kReducing = 5,  // a rank is reducing all inputs of an eager operation
  // This generation was never committed, and a later one has been decided: a
  // rank that could not wait continued alone (another rank has left, or the
  // epoch has ended).
  kSuperseded = 6,
};

// Where the result of a committed eager operation is: its outcome's detail.
struct EagerResult {
  uint32_t local = 0;
  uint32_t buffer = 0;
};

// Words of the form generation << 32 | value.
inline constexpr uint64_t Tagged(uint32_t generation, uint32_t value) {
  return uint64_t{generation} << 32 | value;
}
inline constexpr uint32_t TagOf(uint64_t word) {
  return static_cast<uint32_t>(word >> 32);
}
inline constexpr uint32_t ValueOf(uint64_t word) {
  return static_cast<uint32_t>(word);
}
// The count in a progress word, as generation g reads it: an older tag means
// that nothing is done yet, a newer one that all of g was done long ago.
inline constexpr uint32_t CountAt(uint64_t word, uint32_t g) {
  if (TagOf(word) == g) return ValueOf(word);
  return TagOf(word) > g ? UINT32_MAX : 0;
}

struct alignas(64) RunHeader {
  std::atomic<uint64_t> outcome;  // Tagged(generation, Outcome | detail << 8)
  // The last outcome word that was kCommitted. Every process that sees a commit
  // first copies it here, so that it is not lost when a later generation ends.
  std::atomic<uint64_t> committed;
  std::atomic<uint64_t> granted;    // chunks whose node ring place is free
  std::atomic<uint64_t> done;       // chunks whose network stage is done
  std::atomic<uint64_t> node_base;  // node ring index of chunk 0
  // The local members of a negotiated run, as two tagged halves; written before
  // its ticket. (A local rank that is not a member may read an old ticket.)
  std::atomic<uint64_t> members[2];
};

// Progress of one local rank in one run, in chunks, tagged by generation.
struct alignas(64) Progress {
  std::atomic<uint64_t> base;      // rank ring index of chunk 0
  std::atomic<uint64_t> staged;    // chunks where the rank's input is readable
  std::atomic<uint64_t> reduced;   // chunks where the rank's slice is reduced
  std::atomic<uint64_t> consumed;  // chunks delivered to the rank's output
};

struct PlanOperation {
  uint32_t slot;
  uint32_t generation;
  uint64_t offset;  // bytes in the run's space; a multiple of 64
};

// Who executes a run.
enum class RunSite : uint32_t {
  kHost = 0,
  // GPUs, by the executors. The run has ended: the record has the sizes of the
  // results (allgather, alltoall), and nothing is staged.
  kExecutors = 1,
  // GPUs, by the ranks: each calls NCCL with its part of `communicator`.
  kRanks = 2,
};

// A negotiated run: operations of one kind, dtype, op, scale and root, laid out
// one after the other in the run's byte space. An allgather is never fused with
// others; first_dims holds its first dimension by global rank.
struct alignas(64) PlanHeader {
  uint32_t generation;  // counts the uses of this record, from 1
  uint32_t operations;
  uint64_t bytes;   // size of the run's space, gaps included
  uint32_t matrix;  // alltoall: number of the matrix with its splits
  RunSite site;
  uint32_t communicator;  // kRanks: its number in the epoch
};

// Reference to a run: the slot number of a run of one slot, or `slots` + the
// number of a negotiated run.
using RunRef = uint32_t;

struct Ticket {
  RunRef ref = 0;
  uint32_t generation = 0;  // its low 16 bits
  bool Is(uint32_t g) const { return (g & 0xffff) == generation; }
};
inline constexpr uint64_t kNoPlace = UINT64_MAX;

class Board {
 public:
  // Creates and seals the memory. Reserves all of it except slots, their runs
  // and the arenas, so that a shortage is an error here and not a SIGBUS later.
  // `version`: of the layout, which all versions in kProtocolVersions share.
  static Status Create(const BoardConfig& config, std::unique_ptr<Board>* out,
                       uint32_t version = kProtocolVersion);
  // Maps a board made by Create; checks magic, version, config and size.
  // Create and Attach map less of the arenas if the process's address space is
  // limited (ulimit -v).
  static Status Attach(Fd memory, std::unique_ptr<Board>* out);

  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  const BoardConfig& config() const { return config_; }
  int fd() const { return fd_.get(); }
  // Size of everything before the arenas, all slots included; and how much
  // memory that takes while `slots` slots are reserved.
  size_t bytes() const;
  size_t bytes(uint32_t slots) const;
  // Reserves slots `from` to `to` - 1 and their runs; both numbers must be
  // multiples of kSlotStep. The executor calls this before it allots one of
  // them, so that a shortage is an error here.
  Status ReserveSlots(uint32_t from, uint32_t to) const;
  RunRef NegotiatedRef(uint32_t n) const { return config_.slots + n; }
  bool IsNegotiated(RunRef ref) const { return ref >= config_.slots; }

  BoardHeader& header() const;
  RankBlock& rank(uint32_t local) const;
  SlotHeader& slot(uint32_t slot) const;
  Arrival& arrival(uint32_t slot, uint32_t local) const;
  RunHeader& run(RunRef ref) const;
  Progress& progress(RunRef ref, uint32_t local) const;
  PlanHeader& plan(uint32_t n) const;
  PlanOperation* plan_operations(uint32_t n) const;  // [kMaxRunOperations]
  int64_t* plan_first_dims(uint32_t n) const;        // [size], by global rank
  // m x m numbers for an alltoall of m <= kMaxAlltoallRanks ranks.
  int64_t* matrix(uint32_t n) const;
  // What a rank sends to each rank of the process set in this generation;
  // [size], but at most [kMaxAlltoallRanks].
  std::atomic<int64_t>* splits(uint32_t number, uint32_t local,
                               uint32_t generation) const;
  std::atomic<uint64_t>& ready_bits(uint32_t word) const;  // [slots / 64]
  uint32_t ready_words() const { return config_.slots / 64; }
  std::byte* pool(uint32_t local, uint32_t buffer) const;
  std::byte* rank_ring(uint32_t local, uint32_t index) const;
  std::byte* node_ring(uint32_t index) const;
  std::byte* arena(uint32_t local) const;       // arena_window() bytes
  uint64_t arena_offset(uint32_t local) const;  // in the memory
  // How much of each arena this process has mapped.
  uint64_t arena_window() const { return arena_window_; }
  // Called by the rank: peers must not refer it to arena bytes beyond this.
  void LimitArenas(uint32_t local, uint64_t bytes) const;
  // How much of each arena all of these local ranks and this process have
  // mapped. Once all have arrived at an operation, they compute the same value.
  uint64_t ArenaReach(uint64_t members) const;

  // --- Slots ---------------------------------------------------------------
  // Called by the executor, once per name; `splits` and `base` as in
  // SlotHeader. A `base` other than 0 means that the slot had other names: no
  // rank may know its number now, and no word of it may carry a generation
  // later than `base`.
  void Allot(uint32_t slot, uint32_t process_set, Kind kind,
             std::string_view name, uint64_t members, uint32_t splits,
             uint32_t base = 0) const;
  // Called by the executor when no rank knows the slot's number any more.
  // Returns a generation that is greater than all in the slot's words.
  uint32_t Free(uint32_t slot) const;
  // Reads which operation the slot is for; for ranks that do not know the
  // slot's number yet. False if the slot is free, or is just being allotted.
  bool ReadIdentity(uint32_t slot, uint32_t* process_set, Kind* kind,
                    std::string* name) const;
  uint64_t Members(uint32_t slot) const {
    return this->slot(slot).members.load(std::memory_order_relaxed);
  }
  // Called by the executor: ranks that stand aside must submit this generation.
  void Want(uint32_t slot, uint32_t generation, const Signature& s) const;
  // The wanted generation, 0 if there is none, and its signature.
  uint32_t Wanted(uint32_t slot, Signature* s) const;
  // Called by the executor, before it places the run's ticket.
  void SetRunMembers(RunRef ref, uint32_t generation, uint64_t members) const;
  // False if the ticket's run has ended, or `local` does not take part in it.
  bool IsMember(const Ticket& ticket, uint32_t local) const;

  // --- Arrival -------------------------------------------------------------
  // Publishes that `local` has submitted this generation of the slot, and what
  // it supplies (`eager_input`): a pool buffer with its input, or kNoBuffer,
  // ...; `arena`, `gpu_place` and `gpu_room` as in Submission.
  void Arrive(uint32_t slot, uint32_t local, uint32_t generation,
              const Signature& s, int eager_input = kNoBuffer,
              uint64_t arena = 0, uint64_t gpu_place = 0,
              uint64_t gpu_room = 0) const;
  // True if all members have arrived.
  bool AllArrived(uint32_t slot, uint32_t generation) const;
  Signature SignatureOf(uint32_t slot, uint32_t local,
                        uint32_t generation) const;
  // The arena tensor submitted with this generation; null if there is none, or
  // it does not lie within `reach`.
  std::byte* ArenaTensorOf(uint32_t slot, uint32_t local, uint32_t generation,
                           uint64_t bytes, uint64_t reach) const;
  // The `gpu_place` and the `gpu_room` submitted with this generation.
  uint64_t GpuPlaceOf(uint32_t slot, uint32_t local, uint32_t generation) const;
  uint64_t GpuRoomOf(uint32_t slot, uint32_t local, uint32_t generation) const;
  // True if all local members have submitted this generation with places on
  // GPUs; without gpu_communicators, on the same one. Then the executor (over
  // several nodes: the coordinator) decides whether it runs there: only if all
  // nodes can, and all results have room. Once all have arrived, all processes
  // compute the same value.
  bool IsOnGpu(uint32_t slot, uint32_t generation) const;
  // What the rank supplied with this generation: the `eager_input` of Arrive().
  int BufferOf(uint32_t slot, uint32_t local, uint32_t generation) const;

  // --- Tickets -------------------------------------------------------------
  // Puts the run into the first empty cell at or after `start` and returns the
  // cell's position; if the run has a ticket there already, returns that one's.
  // `start` must be a position that the caller had passed before it arrived at
  // this generation of the run (its own cursor). Returns kNoPlace if a rank
  // lags half a ring behind in reading tickets; try again later.
  uint64_t PlaceTicket(RunRef ref, uint32_t generation, uint64_t start) const;
  // Reads the ticket at *position; false while the cell is empty. If the cell
  // has been overwritten in a later lap, advances *position to that lap: the
  // reader took no part in the runs that it missed.
  bool ReadTicket(uint64_t* position, Ticket* ticket) const;

  // --- Outcome -------------------------------------------------------------
  // Moves this generation of the run from kRunning to `to`, unless its outcome
  // is decided already. Returns the decided outcome.
  Outcome Decide(RunRef ref, uint32_t generation, Outcome to) const;
  Outcome OutcomeOf(RunRef ref, uint32_t generation) const;
  // Eager operations: one rank claims the reduction, reduces into a pool
  // buffer and commits. False if another rank claimed it, or an abort came
  // first.
  bool ClaimReduction(uint32_t slot, uint32_t generation) const;
  bool CommitEager(uint32_t slot, uint32_t generation, EagerResult r) const;
  // Returns where the result is; false if this generation was not committed as
  // an eager operation.
  bool ResultOf(uint32_t slot, uint32_t generation, EagerResult* r) const;
  // Fails this generation of the slot with a code and a text and wakes all
  // local members. False, without effect, if the outcome was decided already.
  bool Fail(uint32_t slot, uint32_t generation, Code code,
            std::string_view text) const;
  // The error of a generation that failed; the text is "" if a later generation
  // has overwritten it.
  Status ErrorOf(uint32_t slot, uint32_t generation) const;

  // --- Epoch ---------------------------------------------------------------
  // Ends the epoch on this node and wakes all ranks. The first call decides the
  // code and the text.
  void Abort(Code code, std::string_view text) const;
  bool aborted() const {
    return header().abort_code.load(std::memory_order_acquire) != 0;
  }
  Status AbortStatus() const;

  // --- Sleeping and waking -------------------------------------------------
  // Called by the executor after it has sent a SlotRecall: makes one of the
  // rank's threads read it, even if the rank sleeps or has nothing to do.
  void TellOfRecall(uint32_t local) const;
  // Sets header().timeline, and wakes all ranks' threads for it.
  void SetTimeline(uint32_t word) const;
  // Call after publishing; costs a fence and one load if the rank is awake.
  void WakeRank(uint32_t local) const;
  void WakeRanks() const { WakeRanks(UINT64_MAX); }
  void WakeRanks(uint64_t members) const;
  void WakeAside() const;  // ranks that stand aside
  void WakeNetwork() const;
  // True if the executor sleeps and the caller must write its eventfd.
  bool ClaimExecutorWake() const;

 private:
  struct Layout;
  struct Mapped {
    Mapping mapping;
    uint64_t arena_window = 0;
  };
  static Status MapFitting(int fd, const BoardConfig& config, Mapped* out);
  static Status FillMapping(int fd, const Layout& layout,
                            const BoardConfig& config, const Mapped& mapped);
  static Status ReadHeader(int fd, uint64_t size, BoardConfig* config);
  bool MayPlaceAt(uint64_t position) const;
  uint64_t OutcomeWord(RunRef ref, uint32_t generation) const;
  void KeepCommit(RunRef ref, uint64_t word) const;
  void AwaitAbortText() const;
  Board(Fd fd, Mapped mapped, const BoardConfig& config);

  Fd fd_;
  // The board, followed by the arena windows.
  Mapping mapping_;
  uint64_t arena_window_;
  BoardConfig config_;
  std::unique_ptr<Layout> layout_;

 public:
  ~Board();
};

// Hash of a slot's identity: (process set, kind, name).
uint64_t IdentityHash(uint32_t process_set, Kind kind, std::string_view name);

// The chunk of a run's space that starts at chunk * chunk_bytes.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
};
uint32_t ChunkCount(uint64_t bytes, uint32_t chunk_bytes);
Range ChunkRange(uint64_t bytes, uint32_t chunk_bytes, uint32_t chunk);
// Slice `local` of `local_size` of a chunk, relative to the chunk's begin;
// boundaries are multiples of 64 bytes.
Range SliceRange(uint64_t chunk_size, uint32_t local_size, uint32_t local);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_BOARD_BOARD_H_
