#include "common/board/board.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "common/board/copy_text.h"

namespace maypole {
namespace {

BoardConfig Config(uint32_t k) {
  BoardConfig c;
  c.size = c.local_size = k;
  c.slots = 64;
  c.runs = 2;
  c.chunk_bytes = 4096;
  c.ring_depth = 2;
  for (uint32_t i = 0; i < k; ++i) c.global_rank[i] = static_cast<int>(i);
  return c;
}

// Allots the first slots to all ranks.
void AllotAll(const Board& b) {
  const uint64_t all = (uint64_t{1} << b.config().local_size) - 1;
  for (uint32_t slot = 0; slot < b.config().slots; ++slot) {
    b.Allot(slot, 0, Kind::kAllreduce, std::to_string(slot), all, 0);
  }
}

std::unique_ptr<Board> Create(uint32_t k) {
  std::unique_ptr<Board> b;
  const Status s = Board::Create(Config(k), &b);
  EXPECT_TRUE(s.ok()) << s.message();
  if (s.ok()) AllotAll(*b);
  return b;
}

void CheckSlotsTakeMemory(uint32_t page, uint32_t k) {
  BoardConfig config = Config(k);
  config.page_bytes = page;
  config.slots = 3 * kSlotStep;
  std::unique_ptr<Board> b;
  ASSERT_TRUE(Board::Create(config, &b).ok());
  const auto taken = [&] {
    struct stat st;
    EXPECT_EQ(fstat(b->fd(), &st), 0);
    return static_cast<size_t>(st.st_blocks) * 512;
  };
  EXPECT_EQ(taken(), b->bytes(0));
  ASSERT_TRUE(b->ReserveSlots(0, kSlotStep).ok());
  EXPECT_EQ(taken(), b->bytes(kSlotStep));
  ASSERT_TRUE(b->ReserveSlots(kSlotStep, 3 * kSlotStep).ok());
  EXPECT_EQ(taken(), b->bytes(3 * kSlotStep));
  EXPECT_GT(b->bytes(kSlotStep), b->bytes(0));
  for (uint32_t slot = 0; slot < config.slots; ++slot) {
    b->Allot(slot, 0, Kind::kAllreduce, "x", 1, 0);
    b->Arrive(slot, k - 1, 1, Signature());
    b->progress(slot, k - 1).consumed.store(1);
  }
  EXPECT_EQ(taken(), b->bytes(3 * kSlotStep)) << "a slot lies elsewhere";
}

TEST(BoardTest, AttachSeesTheSameMemoryAndConfig) {
  auto a = Create(3);
  std::unique_ptr<Board> b;
  ASSERT_TRUE(Board::Attach(Fd(dup(a->fd())), &b).ok());
  EXPECT_EQ(b->config().local_size, 3u);
  Signature s;
  s.shape[0] = 42;
  a->Arrive(63, 2, 7, s);
  EXPECT_EQ(b->arrival(63, 2).generation.load(), 7u);
  EXPECT_EQ(b->SignatureOf(63, 2, 7).shape[0], 42);
  *a->node_ring(1) = std::byte{9};
  EXPECT_EQ(*b->node_ring(1), std::byte{9});
  EXPECT_EQ(b->node_ring(1) + 4096, b->rank_ring(0, 0) + 8 * 4096)
      << "the node ring ends the memory";
}

// Page sizes that a board may have on this machine: its own, and a larger one.
std::vector<uint32_t> PageSizes() {
  return {static_cast<uint32_t>(PageBytes()), 65536};
}

TEST(BoardTest, SlotsTakeMemoryWhenTheyAreReserved) {
  for (const uint32_t page : PageSizes()) {
    for (const uint32_t k : {1u, 3u}) {
      CheckSlotsTakeMemory(page, k);
    }
  }
}

// mmap() refuses an arena's offset otherwise.
TEST(BoardTest, ArenasBeginAtPagesOfAnySize) {
  for (const uint32_t page : PageSizes()) {
    BoardConfig config = Config(3);
    config.page_bytes = page;
    config.arena_bytes = 16 * page;
    std::unique_ptr<Board> b;
    Status s = Board::Create(config, &b);
    ASSERT_TRUE(s.ok()) << s.message();
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(b->arena_offset(i) % page, 0u);
    }
    EXPECT_EQ(b->arena_window(), config.arena_bytes);
    config.arena_bytes += page / 2;
    s = Board::Create(config, &b);
    EXPECT_EQ(s.message(), "board: arena bytes must be a multiple of " +
                               std::to_string(page) +
                               ", the size of a page, up to 1099511627776");
  }
}

TEST(BoardTest, PagesThatNoKernelHasAreRefused) {
  for (const uint32_t page : {0u, 1024u, 12288u, 1u << 21}) {
    BoardConfig config = Config(1);
    config.page_bytes = page;
    EXPECT_FALSE(CheckConfig(config).ok()) << page;
  }
}

// A profiler's timer: the kernel gives up a reservation at each signal.
TEST(BoardTest, SignalsDoNotEndAReservation) {
  struct sigaction action {};
  struct sigaction before;
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  const itimerval often{{0, 5000}, {0, 5000}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  BoardConfig config = Config(1);
  config.chunk_bytes = 4 << 20;
  config.ring_depth = 32;  // 256 MiB take far longer than 5 ms
  std::unique_ptr<Board> b;
  const Status s = Board::Create(config, &b);
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_TRUE(s.ok()) << s.message();
}

// Limits this process's address space to that much more than it uses now.
bool LeaveAddressSpace(uint64_t bytes) {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * PageBytes() + bytes;
  const rlimit limit{most, most};
  return pages > 0 && setrlimit(RLIMIT_AS, &limit) == 0;
}

// All ranks see an arena's window at the right place, and a rank's limit holds
// for every operation in which it takes part.
TEST(BoardTest, UnderALimitOfAddressSpaceArenasAreCutToWhatFits) {
  BoardConfig config = Config(3);
  config.arena_bytes = uint64_t{8} << 30;
  std::unique_ptr<Board> whole;
  ASSERT_TRUE(Board::Create(config, &whole).ok());
  const pid_t child = fork();
  if (child == 0) {
    if (!LeaveAddressSpace(uint64_t{16} << 30)) _exit(1);
    std::unique_ptr<Board> cut;
    if (!Board::Attach(Fd(dup(whole->fd())), &cut).ok()) _exit(2);
    const uint64_t window = cut->arena_window();
    // 3 x 2 GiB; more than that much again stays free.
    if (window != uint64_t{2} << 30) _exit(3);
    if (whole->ArenaReach(0b111) != config.arena_bytes) _exit(4);
    cut->LimitArenas(1, window);
    if (whole->ArenaReach(0b101) != config.arena_bytes) _exit(5);
    if (whole->ArenaReach(0b111) != window) _exit(6);
    for (uint32_t i = 0; i < 3; ++i) {
      const uint64_t at = window - 4096;
      cut->arena(i)[at] = std::byte{static_cast<uint8_t>(i + 7)};
      if (whole->arena(i)[at] != cut->arena(i)[at]) _exit(7);
    }
    // A tensor beyond the window does not count as one.
    cut->Arrive(1, 0, 1, Signature(), kNoBuffer, window);
    if (cut->ArenaTensorOf(1, 0, 1, 1, window) == nullptr) _exit(8);
    if (cut->ArenaTensorOf(1, 0, 1, 2, window) != nullptr) _exit(9);
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "exit " << WEXITSTATUS(status);
}

// If the addresses of the same offset in two arenas differ only in high bits,
// AMD's L1 cache holds only one of the two lines (see board.cc).
TEST(BoardTest, EqualOffsetsOfArenasDifferInLowBitsOfTheAddress) {
  for (const uint64_t bytes : {uint64_t{2} << 20, uint64_t{8} << 30}) {
    BoardConfig config = Config(8);
    config.arena_bytes = bytes;
    std::unique_ptr<Board> b;
    ASSERT_TRUE(Board::Create(config, &b).ok());
    for (uint32_t i = 0; i < 8; ++i) {
      const auto at = reinterpret_cast<uintptr_t>(b->arena(i));
      for (uint32_t j = 0; j < i; ++j) {
        const auto other = reinterpret_cast<uintptr_t>(b->arena(j));
        ASSERT_GE(at, other + bytes) << i << " overlaps " << j;
        EXPECT_NE((at ^ other) & 0x0ffff000u, 0u) << i << " and " << j;
      }
    }
  }
}

TEST(BoardTest, WithoutAddressSpaceForABoardTheErrorNamesTheLimit) {
  const auto whole = Create(2);
  const pid_t child = fork();
  if (child == 0) {
    if (!LeaveAddressSpace(64 << 10)) _exit(1);
    std::unique_ptr<Board> b;
    const Status s = Board::Attach(Fd(dup(whole->fd())), &b);
    const bool right =
        s.code() == Code::kResourceExhausted &&
        s.message().find("the limit of this process's address space is") !=
            std::string::npos;
    if (!right) fprintf(stderr, "%s\n", s.message().c_str());
    _exit(right ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(BoardTest, MemoryIsSealed) {
  auto a = Create(1);
  EXPECT_EQ(ftruncate(a->fd(), 4096), -1);
}

TEST(BoardTest, AllVersionsThatAreSpokenHaveOneLayout) {
  for (uint32_t v = kOldestProtocolVersion; v <= kProtocolVersion; ++v) {
    std::unique_ptr<Board> a, b;
    ASSERT_TRUE(Board::Create(Config(1), &a, v).ok());
    EXPECT_EQ(a->header().version, v);
    EXPECT_TRUE(Board::Attach(Fd(dup(a->fd())), &b).ok()) << v;
  }
}

TEST(BoardTest, AttachRefusesWhatIsNoBoardAndNamesBothVersions) {
  std::unique_ptr<Board> b;
  Fd empty(memfd_create("x", MFD_CLOEXEC));
  EXPECT_EQ(Board::Attach(std::move(empty), &b).code(), Code::kInvalidArgument);
  auto a = Create(1);
  a->header().version = 77;
  const Status s = Board::Attach(Fd(dup(a->fd())), &b);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_EQ(s.message(),
            "this libmaypole speaks protocol version 1, but the executor's "
            "board speaks protocol version 77; upgrade this libmaypole");
  a->header().version = kProtocolVersion;
  a->header().config.slots = 128;  // does not fit the memory's size
  EXPECT_EQ(Board::Attach(Fd(dup(a->fd())), &b).code(), Code::kInvalidArgument);
}

TEST(BoardTest, ConfigsOutOfBoundsAreRefused) {
  for (auto change : std::vector<void (*)(BoardConfig&)>{
           [](BoardConfig& c) { c.local_size = 65; },
           [](BoardConfig& c) { c.slots = 65; },
           [](BoardConfig& c) { c.slots = 1 << 20; },
           [](BoardConfig& c) { c.chunk_bytes = 1000; },
           [](BoardConfig& c) { c.ring_depth = 1; },
           [](BoardConfig& c) { c.node_index = 1; }}) {
    BoardConfig c = Config(2);
    change(c);
    EXPECT_FALSE(CheckConfig(c).ok());
  }
}

TEST(BoardTest, TicketOfARunIsPlacedOnceHoweverManyPlaceIt) {
  auto b = Create(4);
  constexpr int kRuns = 60;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRuns; ++i) {
        b->PlaceTicket(static_cast<RunRef>((i * 7 + t * 13) % kRuns), 1, 0);
      }
    });
  }
  for (auto& t : threads) t.join();
  std::vector<int> seen(kRuns, 0);
  Ticket ticket;
  uint64_t position = 0;
  while (b->ReadTicket(&position, &ticket)) {
    ++seen[ticket.ref];
    ++position;
  }
  EXPECT_EQ(position, static_cast<uint64_t>(kRuns));
  for (int n : seen) EXPECT_EQ(n, 1);
}

TEST(BoardTest, TicketRingWrapsAroundAndASlowReaderIsMovedOn) {
  auto b = Create(1);
  Ticket ticket;
  uint64_t slow = 3;
  for (uint64_t p = 0; p < 2 * kTicketCells + 5; ++p) {
    uint64_t at = p;
    ASSERT_FALSE(b->ReadTicket(&at, &ticket));
    const auto ref = static_cast<RunRef>(p % 64);
    ASSERT_EQ(b->PlaceTicket(ref, 70000 + ref, p), p);
    ASSERT_TRUE(b->ReadTicket(&at, &ticket));
    ASSERT_EQ(at, p);
    ASSERT_EQ(ticket.ref, ref);
    ASSERT_TRUE(ticket.Is(70000 + ref));
  }
  ASSERT_TRUE(b->ReadTicket(&slow, &ticket));
  EXPECT_EQ(slow, 2 * kTicketCells + 3u);
}

// Places tickets as the executor does: few, among many of the ranks'.
TEST(BoardTest, AWriterThatIsFarBehindFindsTheEndOfTheRing) {
  auto b = Create(1);
  const uint64_t far = uint64_t{50} * kTicketCells;
  for (uint64_t p = 0; p < kTicketCells; ++p) {
    ASSERT_EQ(b->PlaceTicket(1, p & 0xffff, far + p), far + p);
  }
  EXPECT_EQ(b->PlaceTicket(3, 1, 0), far + kTicketCells);
}

TEST(BoardTest, ASpoiledTicketRingDoesNotHoldItsWriter) {
  auto b = Create(1);
  const uint64_t far = ((uint64_t{1} << 24) - 2) * kTicketCells;
  for (uint64_t p = 0; p < kTicketCells; ++p) {
    b->PlaceTicket(1, p & 0xffff, far + p);
  }
  b->PlaceTicket(3, 1, 0);  // anywhere or nowhere, but the call returns
}

// A rank that still needs a ticket keeps its cell from being used again.
TEST(BoardTest, TicketsAreNotPlacedFarAheadOfARankThatReads) {
  auto b = Create(2);
  uint64_t p = 0;
  b->rank(1).tickets_read.store(100 + 1);
  while (b->PlaceTicket(5, p & 0xffff, p) == p) ++p;
  EXPECT_GT(p, kTicketCells / 2);
  EXPECT_LE(p, kTicketCells / 2 + 100 + 1024);
  EXPECT_EQ(b->PlaceTicket(5, 7, p), kNoPlace);
  b->rank(1).tickets_read.store(kAllRead);
  EXPECT_EQ(b->PlaceTicket(5, 7, p), p);
}

TEST(BoardTest, SmallOperationsAreReducedByOneRankOnly) {
  auto b = Create(2);
  EagerResult r;
  EXPECT_TRUE(b->ClaimReduction(4, 1));
  EXPECT_FALSE(b->ClaimReduction(4, 1));
  EXPECT_FALSE(b->ResultOf(4, 1, &r));
  EXPECT_TRUE(b->CommitEager(4, 1, {1, 31}));
  EXPECT_EQ(b->OutcomeOf(4, 1), Outcome::kCommitted);
  ASSERT_TRUE(b->ResultOf(4, 1, &r));
  EXPECT_EQ(r.local, 1u);
  EXPECT_EQ(r.buffer, 31u);
  EXPECT_EQ(b->Decide(4, 1, Outcome::kAborted), Outcome::kCommitted);
  // An abort overrules a claim, and the claimer learns of it.
  EXPECT_TRUE(b->ClaimReduction(4, 2));
  EXPECT_EQ(b->Decide(4, 2, Outcome::kAborted), Outcome::kAborted);
  EXPECT_FALSE(b->CommitEager(4, 2, {0, 0}));
}

TEST(BoardTest, FirstDecisionOfAGenerationWins) {
  auto b = Create(2);
  EXPECT_EQ(b->OutcomeOf(5, 1), Outcome::kRunning);
  EXPECT_EQ(b->Decide(5, 1, Outcome::kCommitted), Outcome::kCommitted);
  EXPECT_EQ(b->Decide(5, 1, Outcome::kAborted), Outcome::kCommitted);
  EXPECT_FALSE(b->Fail(5, 1, Code::kAborted, "late"));
  EXPECT_TRUE(b->Fail(5, 2, Code::kFailedPrecondition, "no good"));
  EXPECT_EQ(b->OutcomeOf(5, 2), Outcome::kFailed);
  EXPECT_EQ(b->ErrorOf(5, 2).message(), "no good");
  EXPECT_EQ(b->ErrorOf(5, 2).code(), Code::kFailedPrecondition);
  EXPECT_EQ(b->ErrorOf(5, 1).message(), "");
  EXPECT_EQ(b->header().failures.load(), 1u);
}

// A rank may still deliver generation 1 when another has failed alone in 2.
TEST(BoardTest, ACommitIsRememberedWhenALaterGenerationEnds) {
  auto b = Create(2);
  EagerResult r;
  ASSERT_TRUE(b->ClaimReduction(4, 1));
  ASSERT_TRUE(b->CommitEager(4, 1, {1, 7}));
  EXPECT_EQ(b->Decide(4, 2, Outcome::kAborted), Outcome::kAborted);
  EXPECT_EQ(b->OutcomeOf(4, 1), Outcome::kCommitted);
  ASSERT_TRUE(b->ResultOf(4, 1, &r));
  EXPECT_EQ(r.buffer, 7u);
  EXPECT_EQ(b->Decide(9, 1, Outcome::kCommitted), Outcome::kCommitted);
  EXPECT_TRUE(b->Fail(9, 3, Code::kAborted, "alone"));
  EXPECT_EQ(b->OutcomeOf(9, 1), Outcome::kCommitted);
  EXPECT_EQ(b->OutcomeOf(9, 2), Outcome::kSuperseded);
}

TEST(BoardTest, AnAbortWhoseWriterDiedStillComes) {
  auto b = Create(1);
  b->header().abort_claim.store(1);  // and nothing more
  EXPECT_FALSE(b->aborted());
  b->Abort(Code::kInternal, "second");
  EXPECT_TRUE(b->aborted());
  EXPECT_FALSE(b->AbortStatus().ok());
}

TEST(BoardTest, FirstAbortWinsAndItsTextIsCut) {
  auto b = Create(1);
  EXPECT_TRUE(b->AbortStatus().ok());
  b->Abort(Code::kAborted, std::string(5000, 'a'));
  b->Abort(Code::kInternal, "second");
  EXPECT_EQ(b->AbortStatus().code(), Code::kAborted);
  EXPECT_EQ(b->AbortStatus().message(), std::string(kMaxErrorBytes, 'a'));
}

TEST(BoardTest, SlicesCoverAChunkOnceAndAreAligned) {
  for (uint64_t size : {0ull, 1ull, 64ull, 65ull, 4000ull, 4096ull}) {
    for (uint32_t k : {1u, 2u, 3u, 7u}) {
      uint64_t at = 0;
      for (uint32_t j = 0; j < k; ++j) {
        const Range r = SliceRange(size, k, j);
        EXPECT_EQ(r.begin, at);
        EXPECT_TRUE(r.begin % 64 == 0 || r.begin == size);
        at = r.end;
      }
      EXPECT_EQ(at, size);
    }
  }
  EXPECT_EQ(ChunkCount(0, 4096), 0u);
  EXPECT_EQ(ChunkCount(4097, 4096), 2u);
  EXPECT_EQ(ChunkRange(4097, 4096, 1).size(), 1u);
}

TEST(BoardTest, OnlyMembersMustArrive) {
  auto b = Create(1);
  std::unique_ptr<Board> three;
  ASSERT_TRUE(Board::Create(Config(3), &three).ok());
  three->Allot(7, 2, Kind::kBroadcast, "x", 0b101, 0);
  EXPECT_EQ(three->slot(7).identity.load(),
            IdentityHash(2, Kind::kBroadcast, "x"));
  uint32_t set = 0;
  Kind kind = Kind::kBarrier;
  std::string name;
  ASSERT_TRUE(three->ReadIdentity(7, &set, &kind, &name));
  EXPECT_EQ(set, 2u);
  EXPECT_EQ(kind, Kind::kBroadcast);
  EXPECT_EQ(name, "x");
  EXPECT_FALSE(three->ReadIdentity(6, &set, &kind, &name));
  EXPECT_EQ(three->header().allotted.load(), 8u);
  three->Arrive(7, 0, 1, Signature());
  EXPECT_FALSE(three->AllArrived(7, 1));
  three->Arrive(7, 2, 1, Signature());
  EXPECT_TRUE(three->AllArrived(7, 1));
}

// No word of the slot's previous name is mistaken for one of the new name, and
// code that still checks the previous name finds it ended.
TEST(BoardTest, ASlotHasNamesOneAfterTheOther) {
  std::unique_ptr<Board> b;
  ASSERT_TRUE(Board::Create(Config(3), &b).ok());
  b->Allot(7, 0, Kind::kAllreduce, "x", 0b011, 0);
  for (const uint32_t local : {0, 1}) {
    b->Arrive(7, local, 1, Signature());
    b->progress(7, local).consumed.store(Tagged(1, UINT32_MAX));
  }
  EXPECT_EQ(b->Decide(7, 1, Outcome::kCommitted), Outcome::kCommitted);
  // Rank 0 has failed the second generation alone, before any rank arrived.
  b->Fail(7, 2, Code::kAborted, "rank 1 has shut down");
  b->Want(7, 2, Signature());
  const uint32_t base = b->Free(7);
  EXPECT_EQ(base, 3u);
  EXPECT_EQ(b->slot(7).identity.load(), 0u);
  b->Allot(7, 2, Kind::kBroadcast, "y", 0b110, 0, base);
  EXPECT_EQ(b->slot(7).base.load(), base);
  EXPECT_FALSE(b->AllArrived(7, base + 1));
  EXPECT_EQ(b->OutcomeOf(7, base + 1), Outcome::kRunning);
  EXPECT_EQ(b->OutcomeOf(7, 1), Outcome::kCommitted);
  Signature s;
  EXPECT_LE(b->Wanted(7, &s), base);
  for (uint32_t local = 0; local < 3; ++local) {
    EXPECT_EQ(b->arrival(7, local).generation.load(), base);
    EXPECT_EQ(CountAt(b->progress(7, local).consumed.load(), 1), UINT32_MAX);
    EXPECT_EQ(CountAt(b->progress(7, local).consumed.load(), base + 1), 0u);
  }
  b->Arrive(7, 1, base + 1, Signature());
  b->Arrive(7, 2, base + 1, Signature());
  EXPECT_TRUE(b->AllArrived(7, base + 1));
  EXPECT_EQ(b->Free(7), base + 2);
}

TEST(BoardTest, ATicketOfARunThatHasEndedIsNobodys) {
  std::unique_ptr<Board> b;
  ASSERT_TRUE(Board::Create(Config(3), &b).ok());
  const RunRef run = b->NegotiatedRef(1);
  b->SetRunMembers(run, 70001, 0b110);
  const Ticket ticket{run, 70001 & 0xffff};
  EXPECT_FALSE(b->IsMember(ticket, 0));
  EXPECT_TRUE(b->IsMember(ticket, 1));
  EXPECT_TRUE(b->IsMember(ticket, 2));
  b->SetRunMembers(run, 70002, 0b111);
  EXPECT_FALSE(b->IsMember(ticket, 1));
  EXPECT_TRUE(b->IsMember({run, 70002 & 0xffff}, 0));
}

TEST(BoardTest, WhatIsWantedIsReadWithItsSignature) {
  auto b = Create(2);
  Signature s;
  EXPECT_EQ(b->Wanted(3, &s), 0u);
  Signature wanted;
  wanted.dims = 1;
  wanted.shape[0] = 77;
  b->Want(3, 4, wanted);
  EXPECT_EQ(b->Wanted(3, &s), 4u);
  EXPECT_EQ(s.shape[0], 77);
}

// A rank may write all of the header, also while the executor reads it.
TEST(BoardTest, TextsOfTheBoardEndWithTheirFields) {
  auto b = Create(2);
  BoardHeader& h = b->header();
  h.abort_code = 77;
  std::memset(h.abort_text, 'x', sizeof(h.abort_text));
  std::memset(h.left_text, 'y', sizeof(h.left_text));
  h.left_count = 0x79797979;
  h.failures = h.allotted = h.aside_count = h.change_wanted = 0x7a7a7a7a;
  const Status status = b->AbortStatus();
  EXPECT_EQ(status.message(), std::string(kMaxErrorBytes, 'x'));
  EXPECT_EQ(status.code(), Code::kUnknown);
  EXPECT_EQ(CopyText(h.left_text), std::string(kMaxErrorBytes, 'y'));
  h.left_text[3] = 0;
  EXPECT_EQ(CopyText(h.left_text), "yyy");
}

TEST(BoardTest, SplitsAreByNameRankAndParity) {
  auto b = Create(2);
  for (uint32_t number = 0; number < 3; ++number) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      for (uint32_t g = 0; g < 2; ++g) {
        for (int i = 0; i < 2; ++i) {
          b->splits(number, rank, g)[i].store(number * 100 + rank * 10 + g * 2 +
                                              i);
        }
      }
    }
  }
  EXPECT_EQ(b->splits(2, 1, 5)[1].load(), 2 * 100 + 10 + 2 + 1);
  EXPECT_EQ(b->splits(0, 0, 4)[0].load(), 0);
}

TEST(BoardTest, SplitsOfALargeJobTakeNoMoreThanTheLargestAlltoall) {
  const auto bytes = [](int size) {
    BoardConfig config = Config(2);
    config.size = size;
    config.nodes = 2;
    std::unique_ptr<Board> b;
    const Status s = Board::Create(config, &b);
    EXPECT_TRUE(s.ok()) << s.message();
    struct stat st {};
    EXPECT_EQ(fstat(b->fd(), &st), 0);
    return static_cast<uint64_t>(st.st_size);
  };
  const uint64_t more = bytes(kMaxRanks) - bytes(kMaxAlltoallRanks);
  // The rest is the first dimensions in the plans: 8 bytes a rank.
  const uint64_t dims =
      Config(2).runs * uint64_t{8} * (kMaxRanks - kMaxAlltoallRanks);
  EXPECT_GE(more + 4096, dims);
  EXPECT_LE(more, dims + 4096);
}

}  // namespace
}  // namespace maypole
