#include "common/board/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>

#include "common/board/gpu_place.h"
#include "common/board/kill_point.h"
#include "common/system/memory.h"
#include "common/system/resource_limits.h"
#include "common/wire/versions.h"

namespace maypole {
namespace {

constexpr uint32_t kChunkStep = 4096;
constexpr uint32_t kLargestPage = 1 << 20;
// A smaller window of the arenas is not worth its mapping.
constexpr uint64_t kLeastArenaWindow = 1 << 20;
// Unmapped bytes after each arena's window. Equal offsets in arenas must not be
// a large power of two apart: ranks mostly have the same tensor at the same
// offset, and AMD's processors predict the way of the L1 cache from a hash of
// linear address bits 12 to 27 (Lipp et al., Take A Way, AsiaCCS 2020), so the
// tensors of several ranks would evict each other at every access. 2 MiB keep
// huge pages possible.
constexpr uint64_t kArenaGap = 2 << 20;
// A ticket: lap of the ring (24 bits), generation (16), run (24).
constexpr int kRefBits = 24;
constexpr int kLapShift = 40;
constexpr uint64_t kRefMask = (uint64_t{1} << kRefBits) - 1;

uint64_t LapOf(uint64_t position) { return position / kTicketCells + 1; }

bool IsPageSize(uint32_t bytes) {
  return bytes >= 4096 && bytes <= kLargestPage && std::has_single_bit(bytes);
}

Mapping Map(size_t bytes, int protection, int flags, int fd) {
  void* p = mmap(nullptr, bytes, protection, flags | MAP_NORESERVE, fd, 0);
  return p == MAP_FAILED ? Mapping() : Mapping(p, bytes);
}

bool MapOver(std::byte* at, int fd, uint64_t offset, uint64_t bytes) {
  return bytes == 0 || mmap(at, bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd,
                            static_cast<off_t>(offset)) != MAP_FAILED;
}

Status Bad(const std::string& what) {
  return Status(Code::kInvalidArgument, "board: " + what);
}

uint64_t ArenaStride(uint64_t window) {
  return window == 0 ? 0 : window + kArenaGap;
}

uint32_t SplitNames(const BoardConfig& c) {
  return std::min(c.slots, kMaxSplitNames);
}

}  // namespace

// The offset of each part, in bytes from the beginning of the memory.
struct Board::Layout {
  uint64_t ranks, tickets, ready, slots, runs, negotiated, plans, splits,
      matrices, pools, rings, arenas, end;
  uint64_t slot_bytes, run_bytes, plan_bytes, plan_dims, split_bytes,
      matrix_bytes;
  uint64_t page;

  explicit Layout(const BoardConfig& c) : page(c.page_bytes) {
    const uint64_t k = c.local_size;
    ranks = RoundUp(sizeof(BoardHeader), page);
    tickets = RoundUp(ranks + k * sizeof(RankBlock), page);
    ready = tickets + uint64_t{kTicketCells} * 8;
    slots = RoundUp(ready + c.slots / 8, page);
    slot_bytes =
        RoundUp(sizeof(SlotHeader), alignof(Arrival)) + k * sizeof(Arrival);
    runs = RoundUp(slots + c.slots * slot_bytes, page);
    run_bytes = sizeof(RunHeader) + k * sizeof(Progress);
    negotiated = runs + c.slots * run_bytes;
    plans = RoundUp(negotiated + c.runs * run_bytes, page);
    plan_dims = sizeof(PlanHeader) + kMaxRunOperations * sizeof(PlanOperation);
    plan_bytes = RoundUp(plan_dims + uint64_t{c.size} * 8, 64);
    splits = RoundUp(plans + c.runs * plan_bytes, page);
    // No alltoall has more ranks: this is the limit over several nodes, and a
    // node has fewer.
    const uint64_t n = std::min<uint64_t>(c.size, kMaxAlltoallRanks);
    split_bytes = n * 8;
    matrices =
        RoundUp(splits + uint64_t{2} * SplitNames(c) * k * split_bytes, page);
    matrix_bytes = c.nodes > 1 ? n * n * 8 : 0;
    pools = RoundUp(matrices + kMatrices * matrix_bytes, page);
    rings = RoundUp(pools + k * c.pool_buffers * c.eager_bytes, page);
    arenas =
        RoundUp(rings + uint64_t{k + 1} * c.ring_depth * c.chunk_bytes, page);
    end = arenas + k * c.arena_bytes;
  }

  // Bytes of memory without the arenas, when `used` slots are reserved.
  uint64_t BytesWith(uint32_t used) const {
    const uint64_t used_slots = RoundUp(slots + used * slot_bytes, page);
    const uint64_t rest = RoundDown(negotiated, page);
    const uint64_t used_runs =
        std::min(RoundUp(runs + used * run_bytes, page), rest);
    return used_slots + (used_runs - runs) + (arenas - rest);
  }
};

Status CheckConfig(const BoardConfig& c) {
  if (c.size < 1 || c.size > kMaxRanks) return Bad("size out of range");
  if (c.local_size < 1 || c.local_size > kMaxLocalRanks ||
      c.local_size > c.size) {
    return Bad("local size " + std::to_string(c.local_size) +
               " out of range (at most " + std::to_string(kMaxLocalRanks) +
               " ranks a node)");
  }
  if (c.nodes < 1 || c.node_index >= c.nodes) return Bad("node out of range");
  if (c.slots < 64 || c.slots > kMaxSlots || c.slots % kSlotStep != 0) {
    return Bad("slots must be a multiple of 64 from 64 to " +
               std::to_string(kMaxSlots));
  }
  if (c.runs < 1 || c.runs > kMaxRuns) return Bad("runs out of range");
  if (c.chunk_bytes < kChunkStep || c.chunk_bytes % kChunkStep != 0 ||
      c.chunk_bytes > (64u << 20)) {
    return Bad("chunk bytes must be a multiple of 4096 up to 64 MiB");
  }
  if (c.ring_depth < 2 || c.ring_depth > kMaxRingDepth) {
    return Bad("ring depth must be from 2 to 64");
  }
  if (c.eager_bytes < 64 || c.eager_bytes % 64 != 0 ||
      c.eager_bytes > (1u << 20) || c.pool_buffers < 1 ||
      c.pool_buffers > 1024) {
    return Bad("eager bytes must be n x 64 up to 1 MiB, buffers 1 to 1024");
  }
  if (!IsPageSize(c.page_bytes)) {
    return Bad("pages of " + std::to_string(c.page_bytes) +
               " bytes: must be a power of 2 from 4096 to 1 MiB");
  }
  if (c.arena_bytes % c.page_bytes != 0 || c.arena_bytes > kMaxArenaBytes) {
    return Bad("arena bytes must be a multiple of " +
               std::to_string(c.page_bytes) + ", the size of a page, up to " +
               std::to_string(kMaxArenaBytes));
  }
  return Status();
}

Board::Board(Fd fd, Mapped mapped, const BoardConfig& config)
    : fd_(std::move(fd)),
      mapping_(std::move(mapped.mapping)),
      arena_window_(mapped.arena_window),
      config_(config),
      layout_(std::make_unique<Layout>(config)) {}

Board::~Board() = default;

Status Board::Create(const BoardConfig& config, std::unique_ptr<Board>* out,
                     uint32_t version) {
  if (Status s = CheckConfig(config); !s.ok()) return s;
  const Layout layout(config);
  Fd fd(memfd_create("maypole-board", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(layout.end)) != 0) {
    return ErrnoStatus(errno,
                       "cannot make a board of " + std::to_string(layout.end) +
                           " bytes, arenas included (if the file size is "
                           "limited, see ulimit -f: raise the limit, or lower "
                           "--arena_bytes of the agent)");
  }
  // Slots and their runs lie between these two ranges: see ReserveSlots().
  Status s = ReservePages(fd.get(), 0, layout.slots);
  if (s.ok()) {
    s = ReservePages(fd.get(), RoundDown(layout.negotiated, layout.page),
                     layout.arenas);
  }
  if (!s.ok()) {
    return Status(s.code(),
                  s.message() + " for a board of " +
                      std::to_string(layout.BytesWith(0)) +
                      " bytes (lower --chunk_bytes or --ring_depth of the "
                      "agent)");
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
      0) {
    return ErrnoStatus(errno, "cannot seal the board");
  }
  Mapped mapped;
  if (s = MapFitting(fd.get(), config, &mapped); !s.ok()) return s;
  // New memory is zero, which is the initial state of everything else.
  auto* header = new (mapped.mapping.data()) BoardHeader{};
  header->magic = kBoardMagic;
  header->version = version;
  header->header_bytes = sizeof(BoardHeader);
  header->config = config;
  out->reset(new Board(std::move(fd), std::move(mapped), config));
  return Status();
}

// If the address space is limited, halves the arena window until the mapping
// takes at most half of what is free: the rank maps its own arena a second
// time, and the program itself also needs address space.
Status Board::MapFitting(int fd, const BoardConfig& config, Mapped* out) {
  const Layout layout(config);
  const bool limited = AddressSpaceLimit().has_value();
  uint64_t window = config.arena_bytes;
  for (;;) {
    const uint64_t bytes =
        layout.arenas + config.local_size * ArenaStride(window);
    Mapping all = Map(bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    const int err = errno;
    bool fits = all.data() != nullptr;
    if (fits && limited && window > 0) {
      fits = Map(bytes + window, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1)
                 .data() != nullptr;
    }
    if (fits) {
      *out = {std::move(all), window};
      return FillMapping(fd, layout, config, *out);
    }
    if (window == 0) {
      return ResourceStatus(err, Needs::kMemory,
                            "cannot map the board of " +
                                std::to_string(layout.arenas) + " bytes");
    }
    window = RoundDown(window / 2, layout.page);
    if (window < kLeastArenaWindow) window = 0;
  }
}

Status Board::FillMapping(int fd, const Layout& layout,
                          const BoardConfig& config, const Mapped& mapped) {
  std::byte* at = mapped.mapping.data();
  bool ok = MapOver(at, fd, 0, layout.arenas);
  at += layout.arenas;
  for (uint32_t i = 0; ok && i < config.local_size; ++i) {
    ok = MapOver(at, fd, layout.arenas + i * config.arena_bytes,
                 mapped.arena_window);
    at += ArenaStride(mapped.arena_window);
  }
  return ok ? Status() : ErrnoStatus(errno, "cannot map the board");
}

// Maps only the header's page: the header says how large the rest is.
Status Board::ReadHeader(int fd, uint64_t size, BoardConfig* config) {
  const Mapping page =
      Map(RoundUp(sizeof(BoardHeader), PageBytes()), PROT_READ, MAP_SHARED, fd);
  if (page.data() == nullptr) {
    return ResourceStatus(errno, Needs::kMemory, "cannot map the board");
  }
  const auto* header = reinterpret_cast<const BoardHeader*>(page.data());
  if (header->magic != kBoardMagic) return Bad("wrong magic");
  const uint32_t version = header->version;
  uint32_t chosen = 0;
  if (Status s = ChooseVersion({{"the executor's board", {version, version}},
                                {"this libmaypole", kProtocolVersions}},
                               &chosen);
      !s.ok()) {
    return s;
  }
  if (header->header_bytes != sizeof(BoardHeader)) {
    return Bad("its header has " + std::to_string(header->header_bytes) +
               " bytes, not " + std::to_string(sizeof(BoardHeader)) +
               "; install one build of Maypole on both sides");
  }
  *config = header->config;
  if (Status s = CheckConfig(*config); !s.ok()) return s;
  if (config->page_bytes % PageBytes() != 0) {
    return Bad("it was made for pages of " +
               std::to_string(config->page_bytes) +
               " bytes, but this kernel's have " + std::to_string(PageBytes()));
  }
  return Layout(*config).end == size
             ? Status()
             : Bad("the memory's size does not match the board's config");
}

Status Board::Attach(Fd memory, std::unique_ptr<Board>* out) {
  struct stat st;
  if (fstat(memory.get(), &st) != 0) return ErrnoStatus(errno, "board");
  if (st.st_size < static_cast<off_t>(sizeof(BoardHeader))) {
    return Bad("the memory is too small to be a board");
  }
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Bad("the memory is not sealed");
  }
  BoardConfig config;
  Status s =
      ReadHeader(memory.get(), static_cast<uint64_t>(st.st_size), &config);
  if (!s.ok()) return s;
  Mapped mapped;
  if (s = MapFitting(memory.get(), config, &mapped); !s.ok()) return s;
  out->reset(new Board(std::move(memory), std::move(mapped), config));
  return Status();
}

BoardHeader& Board::header() const {
  return *reinterpret_cast<BoardHeader*>(mapping_.data());
}

RankBlock& Board::rank(uint32_t local) const {
  return reinterpret_cast<RankBlock*>(mapping_.data() + layout_->ranks)[local];
}

SlotHeader& Board::slot(uint32_t slot) const {
  return *reinterpret_cast<SlotHeader*>(mapping_.data() + layout_->slots +
                                        slot * layout_->slot_bytes);
}

Arrival& Board::arrival(uint32_t slot, uint32_t local) const {
  std::byte* first = mapping_.data() + layout_->slots +
                     slot * layout_->slot_bytes +
                     RoundUp(sizeof(SlotHeader), alignof(Arrival));
  return reinterpret_cast<Arrival*>(first)[local];
}

RunHeader& Board::run(RunRef ref) const {
  return *reinterpret_cast<RunHeader*>(mapping_.data() + layout_->runs +
                                       ref * layout_->run_bytes);
}

Progress& Board::progress(RunRef ref, uint32_t local) const {
  std::byte* first = mapping_.data() + layout_->runs +
                     ref * layout_->run_bytes + sizeof(RunHeader);
  return reinterpret_cast<Progress*>(first)[local];
}

PlanHeader& Board::plan(uint32_t n) const {
  return *reinterpret_cast<PlanHeader*>(mapping_.data() + layout_->plans +
                                        n * layout_->plan_bytes);
}

PlanOperation* Board::plan_operations(uint32_t n) const {
  return reinterpret_cast<PlanOperation*>(mapping_.data() + layout_->plans +
                                          n * layout_->plan_bytes +
                                          sizeof(PlanHeader));
}

int64_t* Board::plan_first_dims(uint32_t n) const {
  return reinterpret_cast<int64_t*>(mapping_.data() + layout_->plans +
                                    n * layout_->plan_bytes +
                                    layout_->plan_dims);
}

int64_t* Board::matrix(uint32_t n) const {
  return reinterpret_cast<int64_t*>(mapping_.data() + layout_->matrices +
                                    n * layout_->matrix_bytes);
}

std::atomic<int64_t>* Board::splits(uint32_t number, uint32_t local,
                                    uint32_t generation) const {
  const uint64_t row =
      (uint64_t{number} * config_.local_size + local) * 2 + generation % 2;
  return reinterpret_cast<std::atomic<int64_t>*>(
      mapping_.data() + layout_->splits + row * layout_->split_bytes);
}

std::atomic<uint64_t>& Board::ready_bits(uint32_t word) const {
  return reinterpret_cast<std::atomic<uint64_t>*>(mapping_.data() +
                                                  layout_->ready)[word];
}

std::byte* Board::pool(uint32_t local, uint32_t buffer) const {
  return mapping_.data() + layout_->pools +
         (uint64_t{local} * config_.pool_buffers + buffer) *
             config_.eager_bytes;
}

std::byte* Board::rank_ring(uint32_t local, uint32_t index) const {
  return mapping_.data() + layout_->rings +
         (uint64_t{local} * config_.ring_depth + index) * config_.chunk_bytes;
}

std::byte* Board::node_ring(uint32_t index) const {
  return rank_ring(config_.local_size, index);
}

size_t Board::bytes() const { return layout_->arenas; }

size_t Board::bytes(uint32_t slots) const { return layout_->BytesWith(slots); }

Status Board::ReserveSlots(uint32_t from, uint32_t to) const {
  const uint64_t page = layout_->page;
  const auto reserve = [&](uint64_t first, uint64_t each) {
    return ReservePages(fd_.get(), RoundDown(first + from * each, page),
                        RoundUp(first + to * each, page));
  };
  Status s = reserve(layout_->slots, layout_->slot_bytes);
  if (s.ok()) s = reserve(layout_->runs, layout_->run_bytes);
  if (s.ok()) return s;
  return Status(s.code(), s.message() + " for " + std::to_string(to) +
                              " different operation names");
}

uint64_t Board::arena_offset(uint32_t local) const {
  return layout_->arenas + local * config_.arena_bytes;
}

std::byte* Board::arena(uint32_t local) const {
  return mapping_.data() + layout_->arenas + local * ArenaStride(arena_window_);
}

void Board::LimitArenas(uint32_t local, uint64_t bytes) const {
  rank(local).arena_limit.store(bytes + 1, std::memory_order_relaxed);
}

uint64_t Board::ArenaReach(uint64_t members) const {
  uint64_t reach = arena_window_;
  for (; members != 0; members &= members - 1) {
    const auto i = static_cast<uint32_t>(std::countr_zero(members));
    const uint64_t word = rank(i).arena_limit.load(std::memory_order_relaxed);
    if (word != 0) reach = std::min(reach, word - 1);
  }
  return reach;
}

void Board::Allot(uint32_t slot_number, uint32_t process_set, Kind kind,
                  std::string_view name, uint64_t members, uint32_t splits,
                  uint32_t base) const {
  SlotHeader& s = slot(slot_number);
  if (base != 0) {
    // Write the words as if all ranks had submitted generation `base` and got
    // its result: for code that still checks older generations (for their ring
    // places, pool buffers) those are long done.
    for (uint32_t i = 0; i < config_.local_size; ++i) {
      arrival(slot_number, i).generation.store(base, std::memory_order_relaxed);
      progress(slot_number, i)
          .consumed.store(Tagged(base, UINT32_MAX), std::memory_order_release);
    }
  }
  s.base.store(base, std::memory_order_relaxed);
  s.members.store(members, std::memory_order_relaxed);
  s.process_set.store(process_set, std::memory_order_relaxed);
  s.kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  s.splits.store(splits, std::memory_order_relaxed);
  s.wants_copies.store(0, std::memory_order_relaxed);
  char text[kMaxNameBytes + 1] = {};
  std::memcpy(text, name.data(), std::min(name.size(), kMaxNameBytes));
  for (size_t i = 0; i < std::size(s.name); ++i) {
    uint64_t word;
    std::memcpy(&word, text + i * 8, 8);
    s.name[i].store(word, std::memory_order_relaxed);
  }
  s.identity.store(IdentityHash(process_set, kind, name),
                   std::memory_order_release);
  std::atomic<uint32_t>& allotted = header().allotted;
  if (allotted.load(std::memory_order_relaxed) <= slot_number) {
    allotted.store(slot_number + 1, std::memory_order_release);
  }
}

uint32_t Board::Free(uint32_t slot_number) const {
  SlotHeader& s = slot(slot_number);
  s.identity.store(0, std::memory_order_release);
  uint32_t last = 0;
  for (uint32_t i = 0; i < config_.local_size; ++i) {
    last = std::max(
        last,
        arrival(slot_number, i).generation.load(std::memory_order_acquire));
  }
  // A generation that failed before any rank arrived is found only here.
  RunHeader& r = run(slot_number);
  for (std::atomic<uint64_t>* word :
       {&r.outcome, &r.committed, &s.wanted, &s.urgency}) {
    last = std::max(last, TagOf(word->load(std::memory_order_acquire)));
  }
  return last + 1;
}

// If the slot is reused meanwhile, the words may belong to two names; then the
// hash does not match.
bool Board::ReadIdentity(uint32_t slot_number, uint32_t* process_set,
                         Kind* kind, std::string* name) const {
  const SlotHeader& s = slot(slot_number);
  const uint64_t identity = s.identity.load(std::memory_order_acquire);
  if (identity == 0) return false;
  *process_set = s.process_set.load(std::memory_order_relaxed);
  *kind = static_cast<Kind>(s.kind.load(std::memory_order_relaxed));
  char text[kMaxNameBytes + 1];
  for (size_t i = 0; i < std::size(s.name); ++i) {
    const uint64_t word = s.name[i].load(std::memory_order_relaxed);
    std::memcpy(text + i * 8, &word, 8);
  }
  text[kMaxNameBytes] = 0;
  *name = text;
  return IdentityHash(*process_set, *kind, *name) == identity;
}

void Board::Want(uint32_t slot_number, uint32_t generation,
                 const Signature& signature) const {
  SlotHeader& s = slot(slot_number);
  uint64_t words[sizeof(Signature) / 8];
  std::memcpy(words, &signature, sizeof(signature));
  for (size_t i = 0; i < std::size(words); ++i) {
    s.wanted_signature[i].store(words[i], std::memory_order_relaxed);
  }
  s.wanted.store(Tagged(generation, 1), std::memory_order_release);
  WakeAside();
}

uint32_t Board::Wanted(uint32_t slot_number, Signature* signature) const {
  const SlotHeader& s = slot(slot_number);
  const uint32_t generation = TagOf(s.wanted.load(std::memory_order_acquire));
  if (generation == 0) return 0;
  uint64_t words[sizeof(Signature) / 8];
  for (size_t i = 0; i < std::size(words); ++i) {
    words[i] = s.wanted_signature[i].load(std::memory_order_relaxed);
  }
  std::memcpy(signature, words, sizeof(*signature));
  return generation;
}

void Board::SetRunMembers(RunRef ref, uint32_t generation,
                          uint64_t members) const {
  for (int half = 0; half < 2; ++half) {
    run(ref).members[half].store(
        Tagged(generation, static_cast<uint32_t>(members >> 32 * half)),
        std::memory_order_release);
  }
}

// A run's record is not reused before all its members have left the run. So a
// rank that finds another generation is not a member, however late it reads.
bool Board::IsMember(const Ticket& ticket, uint32_t local) const {
  if (!IsNegotiated(ticket.ref)) return (Members(ticket.ref) >> local & 1) != 0;
  const uint64_t word =
      run(ticket.ref).members[local / 32].load(std::memory_order_acquire);
  return ticket.Is(TagOf(word)) && (ValueOf(word) >> local % 32 & 1) != 0;
}

void Board::Arrive(uint32_t slot, uint32_t local, uint32_t generation,
                   const Signature& s, int eager_input, uint64_t arena,
                   uint64_t gpu_place, uint64_t gpu_room) const {
  Arrival& a = arrival(slot, local);
  Submission& submission = a.submissions[generation % 2];
  uint64_t words[sizeof(Signature) / 8];
  std::memcpy(words, &s, sizeof(s));
  for (size_t i = 0; i < std::size(words); ++i) {
    submission.signature[i].store(words[i], std::memory_order_relaxed);
  }
  submission.arena.store(arena, std::memory_order_relaxed);
  submission.gpu_place.store(gpu_place, std::memory_order_relaxed);
  submission.gpu_room.store(gpu_room, std::memory_order_relaxed);
  submission.eager_input.store(static_cast<uint32_t>(eager_input + 3),
                               std::memory_order_relaxed);
  MAYPOLE_KILL_POINT("arrive.written");
  a.generation.store(generation, std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("arrive.published");
}

bool Board::AllArrived(uint32_t slot, uint32_t generation) const {
  const uint64_t members = Members(slot);
  for (uint32_t i = 0; i < config_.local_size; ++i) {
    if ((members >> i & 1) == 0) continue;
    if (arrival(slot, i).generation.load(std::memory_order_seq_cst) <
        generation) {
      return false;
    }
  }
  return true;
}

Signature Board::SignatureOf(uint32_t slot, uint32_t local,
                             uint32_t generation) const {
  const Submission& from = arrival(slot, local).submissions[generation % 2];
  uint64_t words[sizeof(Signature) / 8];
  for (size_t i = 0; i < std::size(words); ++i) {
    words[i] = from.signature[i].load(std::memory_order_relaxed);
  }
  Signature s;
  std::memcpy(&s, words, sizeof(s));
  return s;
}

uint64_t Board::GpuPlaceOf(uint32_t slot, uint32_t local,
                           uint32_t generation) const {
  return arrival(slot, local)
      .submissions[generation % 2]
      .gpu_place.load(std::memory_order_relaxed);
}

uint64_t Board::GpuRoomOf(uint32_t slot, uint32_t local,
                          uint32_t generation) const {
  return arrival(slot, local)
      .submissions[generation % 2]
      .gpu_room.load(std::memory_order_relaxed);
}

bool Board::IsOnGpu(uint32_t slot, uint32_t generation) const {
  uint64_t first = kNoGpuPlace;
  const uint64_t members = Members(slot);
  for (uint32_t i = 0; i < config_.local_size; ++i) {
    if ((members >> i & 1) == 0) continue;
    const uint64_t place = GpuPlaceOf(slot, i, generation);
    if (place == kNoGpuPlace) return false;
    if (first == kNoGpuPlace) first = place;
    if (config_.gpu_communicators == 0 &&
        UnpackGpuPlace(place).gpu != UnpackGpuPlace(first).gpu) {
      return false;
    }
  }
  return first != kNoGpuPlace;
}

int Board::BufferOf(uint32_t slot, uint32_t local, uint32_t generation) const {
  const uint32_t b = arrival(slot, local)
                         .submissions[generation % 2]
                         .eager_input.load(std::memory_order_relaxed);
  return b < config_.pool_buffers + 3 ? static_cast<int>(b) - 3 : kNoBuffer;
}

// The check ensures that a peer's word cannot refer to memory outside its
// arena.
std::byte* Board::ArenaTensorOf(uint32_t slot, uint32_t local,
                                uint32_t generation, uint64_t bytes,
                                uint64_t reach) const {
  const uint64_t word = arrival(slot, local)
                            .submissions[generation % 2]
                            .arena.load(std::memory_order_relaxed);
  if (word == 0 || bytes > reach || word - 1 > reach - bytes) return nullptr;
  return this->arena(local) + (word - 1);
}

uint64_t Board::PlaceTicket(RunRef ref, uint32_t generation,
                            uint64_t start) const {
  auto* cells = reinterpret_cast<std::atomic<uint64_t>*>(mapping_.data() +
                                                         layout_->tickets);
  const uint64_t run = uint64_t{generation & 0xffff} << kRefBits | ref;
  uint64_t position = start;
  for (uint32_t looks = 0; looks < 2 * kTicketCells; ++looks, ++position) {
    std::atomic<uint64_t>& cell = cells[position % kTicketCells];
    uint64_t seen = cell.load(std::memory_order_acquire);
    // A cell of a later lap: all positions up to that one are full.
    const uint64_t lap = std::max(LapOf(position), seen >> kLapShift);
    position = (lap - 1) * kTicketCells + position % kTicketCells;
    const uint64_t ticket = lap << kLapShift | run;
    while ((seen >> kLapShift) < lap) {
      if (!MayPlaceAt(position)) return kNoPlace;
      MAYPOLE_KILL_POINT("ticket.found");
      if (cell.compare_exchange_weak(seen, ticket, std::memory_order_seq_cst,
                                     std::memory_order_acquire)) {
        MAYPOLE_KILL_POINT("ticket.placed");
        return position;
      }
    }
    if (seen == ticket) return position;  // another rank placed it
  }
  return kNoPlace;  // a rank has corrupted the ring
}

// Tickets that a rank has yet to read must not be overwritten, however far
// ahead other ranks are. Only the process that fills the first cell of a
// stretch checks this, for the whole stretch. The bound of half a ring leaves
// room for processes that passed the check earlier.
bool Board::MayPlaceAt(uint64_t position) const {
  constexpr uint64_t kStretch = 1024;
  if (position % kStretch != 0) return true;
  for (uint32_t i = 0; i < config_.local_size; ++i) {
    const uint64_t read = rank(i).tickets_read.load(std::memory_order_acquire);
    if (read != kAllRead && position >= read + kTicketCells / 2) return false;
  }
  return true;
}

bool Board::ReadTicket(uint64_t* position, Ticket* ticket) const {
  const auto* cells = reinterpret_cast<const std::atomic<uint64_t>*>(
      mapping_.data() + layout_->tickets);
  const uint64_t index = *position % kTicketCells;
  const uint64_t seen = cells[index].load(std::memory_order_acquire);
  const uint64_t lap = seen >> kLapShift;
  if (lap < LapOf(*position)) return false;
  *position = (lap - 1) * kTicketCells + index;
  ticket->ref = static_cast<RunRef>(seen & kRefMask);
  ticket->generation = static_cast<uint32_t>(seen >> kRefBits & 0xffff);
  return true;
}

uint64_t IdentityHash(uint32_t process_set, Kind kind, std::string_view name) {
  return HashBytes(IdentityKey(process_set, kind, name));
}

uint32_t ChunkCount(uint64_t bytes, uint32_t chunk_bytes) {
  return static_cast<uint32_t>((bytes + chunk_bytes - 1) / chunk_bytes);
}

Range ChunkRange(uint64_t bytes, uint32_t chunk_bytes, uint32_t chunk) {
  const uint64_t begin = uint64_t{chunk} * chunk_bytes;
  return {begin, std::min<uint64_t>(begin + chunk_bytes, bytes)};
}

Range SliceRange(uint64_t chunk_size, uint32_t local_size, uint32_t local) {
  const uint64_t each = RoundUp((chunk_size + local_size - 1) / local_size, 64);
  return {std::min(each * local, chunk_size),
          std::min(each * (local + 1), chunk_size)};
}

}  // namespace maypole
