#include "worker/executor/board/board_keeper.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "common/board/urgent.h"

namespace maypole::worker {
namespace {

// Bounds the passes over the ready bits while ranks keep submitting.
constexpr int kMaxReadyPasses = 16;

}  // namespace

BoardKeeper::BoardKeeper(std::unique_ptr<Board> board)
    : board_(std::move(board)),
      issued_(board_->config().runs),
      present_(board_->config().local_size) {}

Status BoardKeeper::Allot(const AllotSlot& a) {
  if (a.slot >= reserved_) {
    const uint32_t to = (a.slot / kSlotStep + 1) * kSlotStep;
    if (Status s = board_->ReserveSlots(reserved_, to); !s.ok()) return s;
    reserved_ = to;
  }
  allotted_ = std::max(allotted_, a.slot + 1);
  slots_.resize(allotted_);
  slots_[a.slot] = {a.set, a.splits, a.name};
  board_->Allot(a.slot, a.set->id, a.kind, a.name, a.set->mask(), a.splits,
                a.base);
  return Status();
}

std::vector<IdleSlot> BoardKeeper::IdleSlots() const {
  std::vector<IdleSlot> idle;
  for (uint32_t slot = 0; slot < allotted_; ++slot) {
    if (slots_[slot].set == nullptr) continue;
    uint32_t least = std::numeric_limits<uint32_t>::max();
    uint32_t greatest = 0;
    for (const uint32_t local : slots_[slot].set->locals) {
      const uint32_t generation =
          board_->arrival(slot, local)
              .generation.load(std::memory_order_relaxed);
      least = std::min(least, generation);
      greatest = std::max(greatest, generation);
    }
    // After a departure operations fail before all ranks have arrived, and the
    // ranks stay at different generations.
    if (least == greatest || HasLeft(*slots_[slot].set)) {
      idle.push_back({slot, greatest});
    }
  }
  return idle;
}

uint32_t BoardKeeper::Free(uint32_t slot) {
  slots_[slot] = KeptSlot();
  return board_->Free(slot);
}

bool BoardKeeper::CopyReadySlot(uint32_t slot, ReadySlot* ready) const {
  const SharedSet& set = slots_[slot].set;
  if (set == nullptr) return false;
  const auto generation = [&](uint32_t local) {
    return board_->arrival(slot, local)
        .generation.load(std::memory_order_acquire);
  };
  ready->slot = slot;
  ready->generation = generation(set->locals.front());
  for (const uint32_t local : set->locals) {
    // A rank at a later generation has left this one, which has failed; the
    // next arrivals set the bit again.
    if (generation(local) != ready->generation) return false;
    ready->signatures.push_back(
        board_->SignatureOf(slot, local, ready->generation));
  }
  if (slots_[slot].splits != 0) CopySplits(slot, ready);
  if (board_->IsOnGpu(slot, ready->generation)) CopyGpuPlaces(slot, ready);
  ready->urgency = UrgencyOf(*board_, slot, ready->generation);
  ready->copied = AllCopied(slot, ready->generation);
  return ready->generation != 0;
}

void BoardKeeper::CopyGpuPlaces(uint32_t slot, ReadySlot* ready) const {
  for (const uint32_t local : slots_[slot].set->locals) {
    ready->gpu_places.push_back(
        board_->GpuPlaceOf(slot, local, ready->generation));
    ready->gpu_rooms.push_back(
        board_->GpuRoomOf(slot, local, ready->generation));
  }
}

void BoardKeeper::CopySplits(uint32_t slot, ReadySlot* ready) const {
  const KeptSlot& kept = slots_[slot];
  for (const uint32_t local : kept.set->locals) {
    const std::atomic<int64_t>* row =
        board_->splits(kept.splits - 1, local, ready->generation);
    for (int i = 0; i < kept.set->size(); ++i) {
      ready->splits.push_back(row[i].load(std::memory_order_relaxed));
    }
  }
}

namespace {

// Orders by slot. Keeps only the last copy of each slot, so that a rank that
// keeps setting the ready bit does not multiply the reports.
void SortBySlot(std::vector<ReadySlot>* ready) {
  std::stable_sort(
      ready->begin(), ready->end(),
      [](const ReadySlot& a, const ReadySlot& b) { return a.slot < b.slot; });
  std::vector<ReadySlot> last;
  for (ReadySlot& n : *ready) {
    if (!last.empty() && last.back().slot == n.slot) {
      last.back() = std::move(n);
    } else {
      last.push_back(std::move(n));
    }
  }
  *ready = std::move(last);
}

}  // namespace

std::vector<ReadySlot> BoardKeeper::TakeReadySlots() {
  std::vector<ReadySlot> all;
  // Repeat until no slot is new: a slot that became ready during a pass must
  // not be reported after slots that became ready later. Sorted by slot, the
  // reports are then in the order of submission, if all ranks submit in the
  // same order (fusion learns it).
  for (int pass = 0; pass < kMaxReadyPasses && TakeReadySlotsOnce(&all);
       ++pass) {
    if (pass > 0) SortBySlot(&all);
  }
  return all;
}

bool BoardKeeper::TakeReadySlotsOnce(std::vector<ReadySlot>* all) {
  bool some = false;
  for (uint32_t w = 0; w * 64 < allotted_; ++w) {
    std::atomic<uint64_t>& word = board_->ready_bits(w);
    if (word.load(std::memory_order_relaxed) == 0) continue;
    uint64_t bits = word.exchange(0, std::memory_order_seq_cst);
    some = true;
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t slot =
          w * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      ReadySlot ready;
      if (slot < allotted_ && CopyReadySlot(slot, &ready)) {
        all->push_back(std::move(ready));
      }
    }
  }
  return some;
}

void BoardKeeper::WritePlan(const RunSpec& run) {
  PlanHeader& plan = board_->plan(run.record);
  std::copy(run.operations.begin(), run.operations.end(),
            board_->plan_operations(run.record));
  std::copy(run.first_dims.begin(), run.first_dims.end(),
            board_->plan_first_dims(run.record));
  if (!run.splits.empty()) {
    plan.matrix = run.matrix;
    std::copy(run.splits.begin(), run.splits.end(), board_->matrix(run.matrix));
  }
  plan.operations = static_cast<uint32_t>(run.operations.size());
  plan.bytes = run.bytes;
  plan.site = run.site;
  plan.communicator = run.communicator;
  plan.generation = run.generation;
  board_->SetRunMembers(board_->NegotiatedRef(run.record), run.generation,
                        run.members);
}

void BoardKeeper::Issue(const RunSpec& run) {
  issued_[run.record] = {run.operations.front().slot, run.generation,
                         run.members};
  held_.push_back(
      {board_->NegotiatedRef(run.record), run.generation, run.members});
  if (run.site == RunSite::kRanks) runs_of_ranks_.push_back(run.record);
  PlaceHeldTickets();
}

std::vector<uint32_t> BoardKeeper::TakeRunsOfRanks() {
  std::vector<uint32_t> left;
  std::erase_if(runs_of_ranks_, [&](uint32_t record) {
    const Issued& run = issued_[record];
    for (uint32_t i = 0; i < present_.size(); ++i) {
      if ((run.members >> i & 1) == 0 || !present_[i].here) continue;
      const uint64_t word = board_->progress(board_->NegotiatedRef(record), i)
                                .consumed.load(std::memory_order_acquire);
      if (CountAt(word, run.generation) != UINT32_MAX) return false;
    }
    left.push_back(record);
    return true;
  });
  return left;
}

void BoardKeeper::Issue(uint32_t slot, uint32_t generation) {
  held_.push_back({slot, generation, slots_[slot].set->mask()});
  PlaceHeldTickets();
}

void BoardKeeper::Commit(uint32_t slot, uint32_t generation) {
  if (board_->Decide(slot, generation, Outcome::kCommitted) !=
      Outcome::kCommitted) {
    return;  // aborted
  }
  Issue(slot, generation);
}

// Tickets are queued in order. They are held while a rank has not read the
// older half of the ticket ring.
bool BoardKeeper::PlaceHeldTickets() {
  while (!held_.empty() && !board_->aborted()) {
    const Held& held = held_.front();
    const uint64_t position =
        board_->PlaceTicket(held.run, held.generation, next_ticket_);
    if (position == kNoPlace) return true;
    next_ticket_ = position + 1;
    board_->WakeRanks(held.members);
    held_.pop_front();
  }
  return false;
}

void BoardKeeper::MarkPresent(uint32_t local, int pid) {
  present_[local] = {true, pid};
  RankBlock& rank = board_->rank(local);
  rank.pid.store(pid, std::memory_order_relaxed);
  rank.state.store(static_cast<uint32_t>(RankState::kPresent),
                   std::memory_order_release);
}

void BoardKeeper::MarkLeft(const worker::MarkLeft& left) {
  BoardHeader& h = board_->header();
  if (left_.empty()) {
    const size_t n = std::min(left.text.size(), kMaxErrorBytes);
    std::memcpy(h.left_text, left.text.data(), n);
    h.left_text[n] = 0;
  }
  left_.push_back(left);
  if (left.local_rank >= 0) {
    present_[static_cast<size_t>(left.local_rank)].here = false;
    board_->rank(static_cast<uint32_t>(left.local_rank))
        .state.store(static_cast<uint32_t>(RankState::kLeft),
                     std::memory_order_release);
  }
  // seq_cst, as arrivals: either an arriving rank sees this count, or
  // FailWaiting() sees its arrival.
  h.left_count.fetch_add(1, std::memory_order_seq_cst);
  board_->WakeRanks();
  FailWaiting();
}

void BoardKeeper::MarkGone(uint32_t local) {
  if (local >= board_->config().local_size) return;
  present_[local].here = false;
  board_->rank(local).state.store(static_cast<uint32_t>(RankState::kLeft),
                                  std::memory_order_release);
  board_->WakeRanks();
}

const worker::MarkLeft* BoardKeeper::LeftBehind(uint32_t slot,
                                                uint32_t* generation) const {
  const NodeSet& set = *slots_[slot].set;
  uint32_t reached[kMaxLocalRanks] = {};
  *generation = 0;
  for (const uint32_t local : set.locals) {
    reached[local] =
        board_->arrival(slot, local).generation.load(std::memory_order_seq_cst);
    *generation = std::max(*generation, reached[local]);
  }
  const bool incomplete =
      std::any_of(set.locals.begin(), set.locals.end(),
                  [&](uint32_t local) { return reached[local] < *generation; });
  if (!incomplete) return nullptr;
  // The coordinator does not know an operation that is incomplete on this node.
  // So this node must fail the operation even if the rank that has left was on
  // another node.
  for (const worker::MarkLeft& left : left_) {
    if (!set.Has(left.rank)) continue;
    if (left.local_rank < 0 || reached[left.local_rank] < *generation) {
      return &left;
    }
  }
  return nullptr;
}

bool BoardKeeper::HasLeft(const NodeSet& set) const {
  return std::any_of(
      left_.begin(), left_.end(),
      [&](const worker::MarkLeft& left) { return set.Has(left.rank); });
}

void BoardKeeper::FailWaiting() {
  for (uint32_t slot = 0; slot < allotted_; ++slot) {
    uint32_t generation = 0;
    if (slots_[slot].set == nullptr) continue;
    if (const worker::MarkLeft* left = LeftBehind(slot, &generation)) {
      board_->Fail(slot, generation, Code::kAborted, left->text);
    }
  }
}

void BoardKeeper::SetSleeping(bool sleeping) {
  // The value changes each time, so that ranks can see that the loop turns.
  turns_ += 2;
  board_->header().executor_sleeping.store(sleeping ? turns_ : 0,
                                           std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace maypole::worker
