// Board: the shared memory in which the ranks of a node meet.
//
// Purpose: one sealed memfd per job, node and epoch holds the op board (who
// has submitted what), the ticket ring (in which order operations run), the
// progress of running operations and the rings through which data moves. This
// file is the layout and the few atomic protocols on it; what a rank does with
// them is client/engine/progress_engine.h, what the executor does is
// worker/executor/. docs/board.md tells why it is right.
//
//   +----------------+  header: constants, abort word, executor's sleep flag
//   | BoardHeader    |
//   | RankBlock   x k|  k local ranks: state, wake word, counters
//   | tickets     x T|  one word each: lap and run reference
//   | news    x S/64 |  bit s: slot s is present on this node
//   | Slot        x S|  identity, error text, one Arrival per local rank
//   | Run     x (S+R)|  outcome and progress; run s < S runs slot s alone,
//   | Plan        x R|  run S+n is a negotiated run: Plan n lists its slots
//   | splits         |  what each rank sends to whom, by alltoall name
//   | matrices       |  the same of alltoalls over nodes, by run
//   | pools       x k|  pool_buffers of eager_bytes each, for small tensors
//   | rank rings  x k|  ring_depth chunks each, written by their rank only
//   | node ring      |  ring_depth chunks, by executor and local ranks
//   | arenas      x k|  arena_bytes of address space each
//   (client/memory/arena.h)
//   +----------------+
//
// Generations: the n-th submission of a name by a rank has generation base + n
// in the name's slot; equal generations belong together. `base` is 0 for the
// slot's first name; a later name's is greater than all generations of those
// before it. A rank submits generation
// g+1 only when g has completed for it, so a reader of g meets g or (when it is
// late itself) something newer, never older.
//
// Who writes what, in which order:
//   Arrival.signature   its rank, before Arrival.generation
//   Arrival.generation  its rank, seq_cst (the rescan that follows must see
//                       everybody who published before)
//   ticket cell         any rank that sees all members arrived, or the
//                       executor: CAS into the first empty cell
//   pool buffer         its rank before it arrives; then, if it is the result,
//                       the rank that claimed the reduction
//   Run.outcome         anybody: CAS, first wins, per generation
//   Progress            its rank; release, read with acquire
//   Run.granted, done   the executor; release, read with acquire
//   Plan                the executor, before the ticket that publishes it
//   splits              its rank, before Arrival.generation
//   slot's members, ..  the executor, before SlotHeader.identity; once a name,
//                       while no rank knows the slot's number (docs/board.md)
//   slot's wanted       the executor: ranks that stand aside shall submit it
//   abort               the executor, which places no ticket of a negotiated
//                       run after it; a client when the executor is gone, or
//                       when it cannot go on itself
//
// Thread contract: everything shared is a std::atomic; the class itself is
// immutable after Create/Attach and may be used by any thread.
//
// Hostility: the executor must copy what it reads and check it; the sizes and
// offsets used here come from the process's own copy of the config, never from
// the header. A client trusts its executor (same user, one job).
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

// Slots are reserved by so many: whole pages of 4096 bytes for any number of
// ranks. Of larger pages a part is reserved twice.
inline constexpr uint32_t kSlotStep = 64;

inline constexpr uint64_t kBoardMagic = 0x6d6179706f6c6531;  // "maypole1"

// Constants of one board, fixed at creation. All counts are bounded by
// common/limits.h; CheckConfig refuses others.
struct BoardConfig {
  uint64_t epoch = 0;
  uint32_t size = 1;        // ranks of the job
  uint32_t local_size = 1;  // ranks of the job on this node
  uint32_t nodes = 1;
  uint32_t node_index = 0;
  uint32_t slots = kMaxSlots;
  uint32_t runs = kMaxRuns;
  uint32_t chunk_bytes = 512 * 1024;  // a multiple of 4096
  uint32_t ring_depth = 8;            // chunks of a ring, at least 2
  uint32_t eager_bytes = 64 * 1024;   // largest small tensor; multiple of 64
  uint32_t pool_buffers = 32;         // small tensors of a rank in flight
  // Of a rank: what its arena tensors may take. Reserved when allocated.
  uint64_t arena_bytes = 0;

  int32_t global_rank[kMaxLocalRanks] = {};  // by local rank
  // Parts begin at multiples of it. The kernel's page size, or (in tests) a
  // multiple.
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
  // Abort: 0 while the epoch lives; else the Code of what ended it. The text
  // is written before the code (release), by who won abort_claim.
  alignas(64) std::atomic<uint32_t> abort_code;
  std::atomic<uint32_t> abort_claim;
  char abort_text[kMaxErrorBytes + 1];
  // Number of ranks of the whole job that have left by shutdown; the text
  // names the first. 0 while all are there.
  std::atomic<uint32_t> left_count;
  char left_text[kMaxErrorBytes + 1];
  // Bumped after an operation's outcome became FAILED, so that progress engines
  // look.
  std::atomic<uint32_t> failures;
  std::atomic<uint32_t> allotted;  // slots below it have been allotted
  // Local ranks that stand aside (have joined): who arrives wakes them.
  std::atomic<uint32_t> aside_count;
  // An elastic job: how many ranks want to come in or out; while it is not 0
  // the epoch's ranks should leave when it suits them. By the executor.
  std::atomic<uint32_t> change_wanted;
  alignas(64) std::atomic<uint32_t> executor_sleeping;
  // The executor's network thread sleeps on this futex word.
  alignas(64) std::atomic<uint32_t> network_wake;
  std::atomic<uint32_t> network_sleeping;
};

// For what a rank has slept in a wait: see RankCounters.
enum class WaitFor : uint32_t {
  kRanks = 0,  // a rank of this node had not submitted the operation
  kNodes = 1,  // all of this node had: other nodes, the coordinator's order
  kData = 2,   // the operation runs: its data moves
  kAgent = 3,  // the executor's answer, to a new name or a request for a set
};
inline constexpr int kWaitFors = 4;

// What a rank counts for the executor, which reads it now and then. Written by
// the rank's own threads only, relaxed; nothing relies on it. A word only
// grows, from 0 with the epoch.
struct alignas(64) RankCounters {
  using Counter = std::atomic<uint64_t>;
  // Operations within the node that have ended well, and the bytes of their
  // results; counted by the first local member of their process set, so that
  // the node has each of them once.
  Counter operations[kKinds];
  Counter operation_bytes[kKinds];
  Counter mismatches;  // operations that this rank has failed for all
  // Operations in whose wait the rank came to sleep, by what it slept for
  // first; and the time.
  alignas(64) Counter waits[kWaitFors];
  Counter wait_ns[kWaitFors];
  // For which local rank this one has slept.
  Counter waited_for_ns[kMaxLocalRanks];
};

// Of a counter that is written under one lock only.
inline void Grow(RankCounters::Counter& counter, uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n,
                std::memory_order_relaxed);
}

struct alignas(64) RankBlock {
  std::atomic<uint32_t> wake;      // futex word; bumped by who wakes the rank
  std::atomic<uint32_t> sleeping;  // set by the sleeper, taken by the waker
  std::atomic<uint32_t> state;     // RankState, written by the executor
  std::atomic<int32_t> pid;        // in the executor's PID namespace; or 0
  // The number of the join that the rank is in; 0: none. Seq_cst against
  // arrivals, as left_count.
  std::atomic<uint32_t> aside;
  // Position of the next ticket that it will read, + 1; kAllRead while the rank
  // has nothing that waits for one. Written now and then: see PlaceTicket.
  alignas(64) std::atomic<uint64_t> tickets_read;
  // Grows while the rank's threads attend to operations: every kHeartbeatMs at
  // the latest while it has any that are not ended.
  std::atomic<uint32_t> heartbeat;
  // Grows with each SlotRecall that the executor has sent the rank.
  std::atomic<uint32_t> recalls;
  // For what the rank waits without a bound: Tagged(generation, slot), or
  // kBlockedInJoin, kBlockedForSet. Written before blocked_count becomes odd.
  std::atomic<uint64_t> blocked_on;
  // Odd: its only thread that uses Maypole waits, and has found nothing to do
  // for a while. It grows at each change.
  std::atomic<uint64_t> blocked_count;
  // How much of each arena the rank has mapped, + 1; 0: all. Written once,
  // before the rank arrives at anything.
  std::atomic<uint64_t> arena_limit;
  RankCounters counters;
};
inline constexpr uint64_t kAllRead = 0;
inline constexpr int kHeartbeatMs = 100;
inline constexpr uint64_t kBlockedInJoin = UINT64_MAX;
inline constexpr uint64_t kBlockedForSet = UINT64_MAX - 1;

// What a rank brings with its submission for the small way
// (client/engine/eager.h): the number of its pool buffer, or one of these.
inline constexpr int kNoBuffer =
    -1;  // nothing: the operation goes by rendezvous
inline constexpr int kOwnInput = -2;  // it came last and reads its own memory
inline constexpr int kNothing = -3;   // the operation needs nothing from it

// What a rank submits with one generation.
struct Submission {
  std::atomic<uint64_t> signature[sizeof(Signature) / 8];
  // Where in the rank's arena the tensor lies, + 1; 0: not there. It is reduced
  // in place.
  std::atomic<uint64_t> arena;
  std::atomic<uint32_t> brought;  // pool buffer or kNoBuffer.., + 3
};

// A rank can be one generation ahead of a slow one that still reads what it had
// submitted before, never two: so there are two places, by parity.
struct alignas(128) Arrival {
  std::atomic<uint32_t> generation;
  Submission submissions[2];
};

struct alignas(64) SlotHeader {
  std::atomic<uint64_t> identity;  // IdentityHash, by the executor; 0: free
  // What the slot is for; before `identity`, and constant while it stands.
  std::atomic<uint64_t> members;  // bit i: local rank i is in the process set
  std::atomic<uint32_t> process_set;
  std::atomic<uint32_t> kind;
  std::atomic<uint32_t> splits;  // an alltoall's number + 1; 0: none
  std::atomic<uint32_t> base;    // the name's first generation is base + 1
  std::atomic<uint64_t> name[(kMaxNameBytes + 1) / 8];
  // Tagged(generation, 1): members that stand aside shall submit this, for
  // nobody on this node does. The signature stands before it.
  std::atomic<uint64_t> wanted;
  std::atomic<uint64_t> wanted_signature[sizeof(Signature) / 8];
  std::atomic<uint64_t> urgency;  // Tagged; see common/board/urgent.h
  std::atomic<uint64_t> error[(kMaxErrorBytes + 1) / 8];
};

enum class Outcome : uint8_t {
  kRunning = 0,  // or not yet begun
  kFailing = 1,  // somebody writes the error text
  kFailed = 2,   // text in the slot
  kCommitted = 3,
  kAborted = 4,   // text in the header
  kReducing = 5,  // a rank reduces the small tensors of all
  // This generation was never committed, and a later one has been decided: a
  // rank that could not wait went on alone (somebody has left, or the epoch has
  // ended).
  kSuperseded = 6,
};

// Where a committed eager operation's result lies: the detail of its outcome.
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
// The count in a progress word, seen from generation g: an older tag means
// nothing done yet, a newer one that all of g is long done.
inline constexpr uint32_t CountAt(uint64_t word, uint32_t g) {
  if (TagOf(word) == g) return ValueOf(word);
  return TagOf(word) > g ? UINT32_MAX : 0;
}

struct alignas(64) RunHeader {
  std::atomic<uint64_t> outcome;  // Tagged(generation, Outcome | detail << 8)
  // The last outcome word that said kCommitted. Whoever sees a commit copies it
  // here before going on, so that it is not lost when a later generation ends.
  std::atomic<uint64_t> committed;
  std::atomic<uint64_t> granted;    // chunks whose node ring place is free
  std::atomic<uint64_t> done;       // chunks whose network stage is done
  std::atomic<uint64_t> node_base;  // node ring index of chunk 0
  // Of a negotiated run, before its ticket: its local members, as two tagged
  // halves. A local rank that is no member may read an old ticket.
  std::atomic<uint64_t> members[2];
};

// Progress of one local rank in one run, in chunks, tagged by generation.
struct alignas(64) Progress {
  std::atomic<uint64_t> base;      // ring index of its chunk 0
  std::atomic<uint64_t> staged;    // chunks whose own contribution is readable
  std::atomic<uint64_t> reduced;   // chunks whose own slice is reduced
  std::atomic<uint64_t> consumed;  // chunks delivered to the rank's output
};

struct PlanOperation {
  uint32_t slot;
  uint32_t generation;
  uint64_t offset;  // bytes in the run's space; a multiple of 64
};

// A negotiated run: operations of one kind, dtype, op, scale, root laid out one
// after the other in the run's byte space. An allgather stands alone; then
// first_dims has the first dimension by global rank.
struct alignas(64) PlanHeader {
  uint32_t generation;  // counts the uses of this record, from 1
  uint32_t operations;
  uint64_t bytes;   // of the run's space, gaps included
  uint32_t matrix;  // alltoall: where its splits are
};

// Reference of a run: slot number, or slots + number of the negotiated run.
using RunRef = uint32_t;

struct Ticket {
  RunRef ref = 0;
  uint32_t generation = 0;  // its low 16 bits
  bool Is(uint32_t g) const { return (g & 0xffff) == generation; }
};
inline constexpr uint64_t kNoPlace = UINT64_MAX;

class Board {
 public:
  // Creates and seals the memory; all but slots, their runs and the arenas is
  // reserved at once, so that shortage is an error here and no SIGBUS later.
  static Status Create(const BoardConfig& config, std::unique_ptr<Board>* out);
  // Maps a board made by Create; checks magic, version, config and size. Both
  // map less of the arenas if there is a limit of address space (ulimit -v).
  static Status Attach(Fd memory, std::unique_ptr<Board>* out);

  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  const BoardConfig& config() const { return config_; }
  int fd() const { return fd_.get(); }
  // Up to the arenas, all slots included; and what that takes of memory while
  // so many slots are reserved.
  size_t bytes() const;
  size_t bytes(uint32_t slots) const;
  // Reserves slots from .. to - 1 and their runs, both multiples of kSlotStep:
  // by the executor before it allots one of them; shortage is an error here.
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
  // n x n, n ranks of the alltoall's process set, at most kMaxAlltoallRanks.
  int64_t* matrix(uint32_t n) const;
  // What a rank sends to each rank of the process set with generation g.
  std::atomic<int64_t>* splits(uint32_t number, uint32_t local,
                               uint32_t generation) const;  // [size]
  std::atomic<uint64_t>& news(uint32_t word) const;         // [slots / 64]
  uint32_t ready_words() const { return config_.slots / 64; }
  std::byte* pool(uint32_t local, uint32_t buffer) const;
  std::byte* rank_ring(uint32_t local, uint32_t index) const;
  std::byte* node_ring(uint32_t index) const;
  std::byte* arena(uint32_t local) const;       // arena_window() bytes
  uint64_t arena_offset(uint32_t local) const;  // in the memory
  // How much of each arena this process has mapped.
  uint64_t arena_window() const { return arena_window_; }
  // By the rank: its peers must not lead it beyond this.
  void LimitArenas(uint32_t local, uint64_t bytes) const;
  // Up to where all of these local ranks, and this process, have mapped arenas;
  // they agree once all have arrived at an operation.
  uint64_t ArenaReach(uint64_t members) const;

  // --- Slots ---------------------------------------------------------------
  // By the executor, once for a name; `splits` and `base` as SlotHeader's. With
  // a base the slot has had other names: no rank knows its number now, and no
  // word of it has a later generation.
  void Allot(uint32_t slot, uint32_t process_set, Kind kind,
             std::string_view name, uint64_t members, uint32_t splits,
             uint32_t base = 0) const;
  // By the executor, when no rank knows the slot's number any more. Returns a
  // generation that is greater than all that its words carry.
  uint32_t Free(uint32_t slot) const;
  // What the slot is for, read by a rank that does not know its number; false:
  // the slot is free, or is being allotted just now.
  bool ReadIdentity(uint32_t slot, uint32_t* process_set, Kind* kind,
                    std::string* name) const;
  uint64_t Members(uint32_t slot) const {
    return this->slot(slot).members.load(std::memory_order_relaxed);
  }
  // By the executor: ranks that stand aside shall submit generation g.
  void Want(uint32_t slot, uint32_t generation, const Signature& s) const;
  // The generation that is wanted, 0 if none, and its signature.
  uint32_t Wanted(uint32_t slot, Signature* s) const;
  // By the executor, before the run's ticket.
  void SetRunMembers(RunRef ref, uint32_t generation, uint64_t members) const;
  // False: the ticket is of a run that has ended, or `local` has no part in it.
  bool IsMember(const Ticket& ticket, uint32_t local) const;

  // --- Arrival -------------------------------------------------------------
  // Publishes that `local` has submitted generation g of the slot, and what it
  // has brought: a pool buffer with its input, or kNoBuffer, ...; `arena` as in
  // Submission.
  void Arrive(uint32_t slot, uint32_t local, uint32_t generation,
              const Signature& s, int brought = kNoBuffer,
              uint64_t arena = 0) const;
  // All members.
  bool AllArrived(uint32_t slot, uint32_t generation) const;
  Signature SignatureOf(uint32_t slot, uint32_t local,
                        uint32_t generation) const;
  // The arena tensor submitted with generation g; null if there is none within
  // `reach`.
  std::byte* ArenaTensorOf(uint32_t slot, uint32_t local, uint32_t generation,
                           uint64_t bytes, uint64_t reach) const;
  // What was brought with generation g.
  int BufferOf(uint32_t slot, uint32_t local, uint32_t generation) const;

  // --- Tickets -------------------------------------------------------------
  // Puts the run into the first empty cell at or after `start` and returns its
  // position; if somebody has put it there already, returns that one. `start`
  // must be a position that the caller had passed before it arrived at this
  // generation of the run (its own cursor). kNoPlace: a rank has not read
  // tickets of half a ring yet; try again later.
  uint64_t PlaceTicket(RunRef ref, uint32_t generation, uint64_t start) const;
  // The ticket at *position, or false while the cell is empty. A position that
  // has been lapped moves on: the reader had no part in what stood there.
  bool ReadTicket(uint64_t* position, Ticket* ticket) const;

  // --- Outcome -------------------------------------------------------------
  // Moves generation g of the run from kRunning to `to` unless somebody has
  // decided already; returns what is decided.
  Outcome Decide(RunRef ref, uint32_t generation, Outcome to) const;
  Outcome OutcomeOf(RunRef ref, uint32_t generation) const;
  // Eager operations: one rank claims the reduction, reduces into a pool
  // buffer and commits. False: another one does; or an abort was faster.
  bool ClaimReduction(uint32_t slot, uint32_t generation) const;
  bool CommitEager(uint32_t slot, uint32_t generation, EagerResult r) const;
  // Where the result lies if generation g was committed as a eager operation.
  bool ResultOf(uint32_t slot, uint32_t generation, EagerResult* r) const;
  // Fails generation g of the slot with a code and a text, unless decided
  // otherwise. True if this call decided. Wakes all local ranks.
  bool Fail(uint32_t slot, uint32_t generation, Code code,
            std::string_view text) const;
  // Of a generation that failed; the text is "" if a later generation has
  // overwritten it.
  Status ErrorOf(uint32_t slot, uint32_t generation) const;

  // --- Epoch ---------------------------------------------------------------
  // Ends the epoch on this node; the first call wins, all ranks are woken.
  void Abort(Code code, std::string_view text) const;
  bool aborted() const {
    return header().abort_code.load(std::memory_order_acquire) != 0;
  }
  Status AbortStatus() const;

  // --- Sleeping and waking -------------------------------------------------
  // By the executor, after it has sent a SlotRecall: whether the rank sleeps or
  // has nothing to do, one of its threads reads it.
  void TellOfRecall(uint32_t local) const;
  // Call after publishing; costs one load when nobody sleeps.
  void WakeRank(uint32_t local) const;
  void WakeRanks() const { WakeRanks(UINT64_MAX); }
  void WakeRanks(uint64_t members) const;
  void WakeAside() const;  // those who stand aside
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
  // Board and arena windows, one after the other.
  Mapping mapping_;
  uint64_t arena_window_;
  BoardConfig config_;
  std::unique_ptr<Layout> layout_;

 public:
  ~Board();
};

// Hash of what a slot is for: (process set, kind, name).
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
