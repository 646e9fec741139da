// The part of Board that decides the outcomes of operations, ends the epoch,
// and wakes sleeping ranks.
#include <algorithm>
#include <cstring>
#include <ctime>

#include "common/board/board.h"
#include "common/board/copy_text.h"
#include "common/board/futex.h"
#include "common/board/kill_point.h"

namespace maypole {
namespace {

// Detail of an eager commit: flag, local rank (7 bits), buffer (16 bits).
constexpr uint32_t kEagerFlag = 1u << 23;

// `word` may be any number, because ranks can write it.
Code CodeOf(uint32_t word) {
  return word <= static_cast<uint32_t>(Code::kUnauthenticated)
             ? static_cast<Code>(word)
             : Code::kUnknown;
}

constexpr uint32_t kOutcomeMask = 0xff;  // above it: the detail

Outcome OutcomeIn(uint64_t word) {
  return static_cast<Outcome>(ValueOf(word) & kOutcomeMask);
}

}  // namespace

// Every process that sees a commit copies it, because the others that saw it
// may have died before they could.
void Board::KeepCommit(RunRef ref, uint64_t word) const {
  std::atomic<uint64_t>& committed = run(ref).committed;
  uint64_t seen = committed.load(std::memory_order_acquire);
  while (TagOf(seen) < TagOf(word) &&
         !committed.compare_exchange_weak(seen, word, std::memory_order_acq_rel,
                                          std::memory_order_acquire)) {
  }
  MAYPOLE_KILL_POINT("commit.kept");
}

// The decided outcome of this generation, with its detail; 0 if it is not
// decided yet.
uint64_t Board::OutcomeWord(RunRef ref, uint32_t generation) const {
  const uint64_t word = run(ref).outcome.load(std::memory_order_acquire);
  if (TagOf(word) < generation) return 0;
  if (TagOf(word) == generation) {
    if (OutcomeIn(word) == Outcome::kCommitted) KeepCommit(ref, word);
    return word;
  }
  const uint64_t kept = run(ref).committed.load(std::memory_order_acquire);
  if (TagOf(kept) == generation) return kept;
  return Tagged(generation, static_cast<uint32_t>(Outcome::kSuperseded));
}

Outcome Board::OutcomeOf(RunRef ref, uint32_t generation) const {
  return OutcomeIn(OutcomeWord(ref, generation));
}

Outcome Board::Decide(RunRef ref, uint32_t generation, Outcome to) const {
  std::atomic<uint64_t>& outcome = run(ref).outcome;
  uint64_t seen = outcome.load(std::memory_order_acquire);
  // An abort overrides a claimed reduction: the rank that claimed it may have
  // died.
  const auto open = [&](uint64_t word) {
    return TagOf(word) < generation ||
           (to == Outcome::kAborted &&
            word ==
                Tagged(generation, static_cast<uint32_t>(Outcome::kReducing)));
  };
  while (open(seen)) {
    if (outcome.compare_exchange_weak(
            seen, Tagged(generation, static_cast<uint32_t>(to)),
            std::memory_order_acq_rel, std::memory_order_acquire)) {
      MAYPOLE_KILL_POINT("decide.decided");
      break;
    }
  }
  return OutcomeOf(ref, generation);
}

bool Board::ClaimReduction(uint32_t slot, uint32_t generation) const {
  std::atomic<uint64_t>& outcome = run(slot).outcome;
  uint64_t seen = outcome.load(std::memory_order_acquire);
  while (TagOf(seen) < generation) {
    if (outcome.compare_exchange_weak(
            seen, Tagged(generation, static_cast<uint32_t>(Outcome::kReducing)),
            std::memory_order_acq_rel, std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

bool Board::CommitEager(uint32_t slot, uint32_t generation,
                        EagerResult r) const {
  uint64_t claimed =
      Tagged(generation, static_cast<uint32_t>(Outcome::kReducing));
  const uint32_t detail = kEagerFlag | r.local << 16 | r.buffer;
  const uint64_t committed = Tagged(
      generation, static_cast<uint32_t>(Outcome::kCommitted) | detail << 8);
  if (!run(slot).outcome.compare_exchange_strong(claimed, committed,
                                                 std::memory_order_acq_rel,
                                                 std::memory_order_acquire)) {
    return false;
  }
  MAYPOLE_KILL_POINT("commit.eager");
  KeepCommit(slot, committed);
  return true;
}

bool Board::ResultOf(uint32_t slot, uint32_t generation, EagerResult* r) const {
  const uint64_t word = OutcomeWord(slot, generation);
  const uint32_t value = ValueOf(word);
  if (OutcomeIn(word) != Outcome::kCommitted ||
      (value >> 8 & kEagerFlag) == 0) {
    return false;
  }
  r->local = value >> 24 & 0x7f;
  r->buffer = value >> 8 & 0xffff;
  return r->local < config_.local_size && r->buffer < config_.pool_buffers;
}

bool Board::Fail(uint32_t slot_number, uint32_t generation, Code code,
                 std::string_view text) const {
  std::atomic<uint64_t>& outcome = run(slot_number).outcome;
  uint64_t seen = outcome.load(std::memory_order_acquire);
  do {
    if (TagOf(seen) >= generation) return false;
  } while (!outcome.compare_exchange_weak(
      seen, Tagged(generation, static_cast<uint32_t>(Outcome::kFailing)),
      std::memory_order_acq_rel, std::memory_order_acquire));
  MAYPOLE_KILL_POINT("fail.failing");
  // A process that reads a word of this text then also sees kFailing or a later
  // outcome: see ErrorOf.
  std::atomic_thread_fence(std::memory_order_release);
  char padded[kMaxErrorBytes + 1] = {};
  std::memcpy(padded, text.data(), std::min(text.size(), kMaxErrorBytes));
  SlotHeader& s = slot(slot_number);
  for (size_t i = 0; i < std::size(s.error); ++i) {
    uint64_t word;
    std::memcpy(&word, padded + i * 8, 8);
    s.error[i].store(word, std::memory_order_relaxed);
  }
  MAYPOLE_KILL_POINT("fail.text");
  const uint32_t failed = static_cast<uint32_t>(Outcome::kFailed) |
                          static_cast<uint32_t>(code) << 8;
  outcome.store(Tagged(generation, failed), std::memory_order_release);
  MAYPOLE_KILL_POINT("fail.failed");
  header().failures.fetch_add(1, std::memory_order_seq_cst);
  MAYPOLE_KILL_POINT("fail.counted");
  WakeRanks(Members(slot_number));
  return true;
}

Status Board::ErrorOf(uint32_t slot_number, uint32_t generation) const {
  char text[kMaxErrorBytes + 1];
  const SlotHeader& s = slot(slot_number);
  for (size_t i = 0; i < std::size(s.error); ++i) {
    const uint64_t word = s.error[i].load(std::memory_order_relaxed);
    std::memcpy(text + i * 8, &word, 8);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  const uint64_t now = run(slot_number).outcome.load(std::memory_order_relaxed);
  if (TagOf(now) != generation) return Status(Code::kAborted, "");
  text[kMaxErrorBytes] = 0;
  return Status(CodeOf(ValueOf(now) >> 8 & 0x1f), text);
}

void Board::Abort(Code code, std::string_view text) const {
  BoardHeader& h = header();
  if (h.abort_claim.exchange(1, std::memory_order_acq_rel) == 0) {
    MAYPOLE_KILL_POINT("abort.claimed");
    const size_t n = std::min(text.size(), kMaxErrorBytes);
    std::memcpy(h.abort_text, text.data(), n);
    MAYPOLE_KILL_POINT("abort.text");
    h.abort_code.store(
        static_cast<uint32_t>(code == Code::kOk ? Code::kAborted : code),
        std::memory_order_seq_cst);
  } else {
    AwaitAbortText();
  }
  MAYPOLE_KILL_POINT("abort.coded");
  WakeRanks();
  WakeNetwork();
}

// Waits up to 10 ms while another process writes the text. If that process has
// died, completes the abort without it; the text may then be empty or cut.
void Board::AwaitAbortText() const {
  std::atomic<uint32_t>& code = header().abort_code;
  for (int i = 0; i < 100 && code.load(std::memory_order_acquire) == 0; ++i) {
    timespec pause{0, 100000};
    nanosleep(&pause, nullptr);
  }
  uint32_t none = 0;
  code.compare_exchange_strong(none, static_cast<uint32_t>(Code::kAborted),
                               std::memory_order_seq_cst);
}

Status Board::AbortStatus() const {
  const uint32_t code = header().abort_code.load(std::memory_order_acquire);
  if (code == 0) return Status();
  const std::string text = CopyText(header().abort_text);
  return Status(
      CodeOf(code),
      text.empty()
          ? "the job has ended; the process that was recording the reason died "
            "before it could"
          : text);
}

namespace {

// Requires a full fence between what was published and the call; one for all
// ranks.
void WakeIfAsleep(RankBlock& r) {
  if (r.sleeping.load(std::memory_order_relaxed) == 0) return;
  const uint32_t who = r.sleeping.exchange(0, std::memory_order_seq_cst);
  if (who == 0) return;
  MAYPOLE_KILL_POINT("wake.claimed");
  r.wake.fetch_add(1, std::memory_order_seq_cst);
  who == kWaitersSleep ? FutexWakeForeground(r.wake) : FutexWakeAll(r.wake);
}

}  // namespace

void Board::WakeRank(uint32_t local) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  WakeIfAsleep(rank(local));
}

void Board::TellOfRecall(uint32_t local) const {
  RankBlock& r = rank(local);
  r.recalls.fetch_add(1, std::memory_order_seq_cst);
  r.wake.fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(r.wake);
}

// Not WakeRank(): a rank without operations has no sleeping flag.
void Board::SetTimeline(uint32_t word) const {
  header().timeline.store(word, std::memory_order_seq_cst);
  for (uint32_t i = 0; i < config_.local_size; ++i) {
    RankBlock& r = rank(i);
    r.wake.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeAll(r.wake);
  }
}

void Board::WakeRanks(uint64_t members) const {
  if (members == 0) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (uint32_t i = 0; i < config_.local_size; ++i) {
    if ((members >> i & 1) != 0) WakeIfAsleep(rank(i));
  }
}

void Board::WakeAside() const {
  if (header().aside_count.load(std::memory_order_seq_cst) == 0) return;
  uint64_t aside = 0;
  for (uint32_t i = 0; i < config_.local_size; ++i) {
    if (rank(i).aside.load(std::memory_order_seq_cst) != 0) {
      aside |= uint64_t{1} << i;
    }
  }
  WakeRanks(aside);
}

void Board::WakeNetwork() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  BoardHeader& h = header();
  if (h.network_sleeping.load(std::memory_order_relaxed) == 0) return;
  if (h.network_sleeping.exchange(0, std::memory_order_seq_cst) == 0) return;
  h.network_wake.fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(h.network_wake);
}

bool Board::ClaimExecutorWake() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  BoardHeader& h = header();
  return h.executor_sleeping.load(std::memory_order_relaxed) != 0 &&
         h.executor_sleeping.exchange(0, std::memory_order_seq_cst) != 0;
}

}  // namespace maypole
