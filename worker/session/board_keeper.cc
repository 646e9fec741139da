#include "worker/session/board_keeper.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/urgent.h"

namespace maypole::worker {
namespace {

// Ranks that submit all the time are not watched for ever.
constexpr int kMaxNewsPasses = 16;

}  // namespace

BoardKeeper::BoardKeeper(std::unique_ptr<Board> board)
    : board_(std::move(board)),
      local_left_(board_->config().local_size, false),
      counted_(board_->config().slots, 0) {}

void BoardKeeper::Allot(uint32_t slot, uint64_t identity) {
  board_->slot(slot).identity.store(identity, std::memory_order_release);
  allotted_ = std::max(allotted_, slot + 1);
}

bool BoardKeeper::CopyNews(uint32_t slot, SlotNews* news) const {
  const uint32_t ranks = board_->config().local_size;
  const auto generation = [&](uint32_t i) {
    return board_->arrival(slot, i).generation.load(std::memory_order_acquire);
  };
  news->slot = slot;
  news->generation = generation(0);
  news->signatures.resize(ranks);
  for (uint32_t i = 0; i < ranks; ++i) {
    // A rank that is ahead has ended this generation already (it failed); its
    // own next arrival sets the bit again.
    if (generation(i) != news->generation) return false;
    news->signatures[i] = board_->SignatureOf(slot, i, news->generation);
  }
  news->urgency = UrgencyOf(*board_, slot, news->generation);
  return news->generation != 0;
}

std::vector<SlotNews> BoardKeeper::TakeNews() {
  std::vector<SlotNews> all;
  // Until nothing is new: what became present while later words were looked at
  // must not come after what became present after it. Sorted by slot, the news
  // are then in the order of submission, if the ranks have one (fusion learns
  // it).
  for (int pass = 0; pass < kMaxNewsPasses && TakeNewsOnce(&all); ++pass) {
  }
  std::stable_sort(
      all.begin(), all.end(),
      [](const SlotNews& a, const SlotNews& b) { return a.slot < b.slot; });
  return all;
}

bool BoardKeeper::TakeNewsOnce(std::vector<SlotNews>* all) {
  bool some = false;
  for (uint32_t w = 0; w * 64 < allotted_; ++w) {
    std::atomic<uint64_t>& word = board_->news(w);
    if (word.load(std::memory_order_relaxed) == 0) continue;
    uint64_t bits = word.exchange(0, std::memory_order_seq_cst);
    some = true;
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t slot =
          w * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      SlotNews news;
      if (slot < allotted_ && CopyNews(slot, &news)) {
        all->push_back(std::move(news));
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
  plan.operations = static_cast<uint32_t>(run.operations.size());
  plan.bytes = run.bytes;
  plan.generation = run.generation;
}

void BoardKeeper::Issue(const RunSpec& run) {
  const RunRef ref = board_->NegotiatedRef(run.record);
  const uint64_t position =
      board_->PlaceTicket(ref, run.generation, next_ticket_);
  if (position == kNoPlace) {
    board_->Abort(Code::kInternal,
                  "a rank of this node has spoiled the board's ticket ring");
    return;
  }
  next_ticket_ = position + 1;
  board_->WakeRanks();
}

void BoardKeeper::MarkPresent(uint32_t local, int pid) {
  RankBlock& rank = board_->rank(local);
  rank.pid.store(pid, std::memory_order_relaxed);
  rank.state.store(static_cast<uint32_t>(RankState::kPresent),
                   std::memory_order_release);
}

void BoardKeeper::MarkLeft(int local_rank, const std::string& text) {
  BoardHeader& h = board_->header();
  if (left_text_.empty()) {
    left_text_ = text;
    const size_t n = std::min(text.size(), kMaxErrorBytes);
    std::memcpy(h.left_text, text.data(), n);
    h.left_text[n] = 0;
  }
  if (local_rank >= 0) {
    local_left_[local_rank] = true;
    board_->rank(static_cast<uint32_t>(local_rank))
        .state.store(static_cast<uint32_t>(RankState::kLeft),
                     std::memory_order_release);
  } else {
    remote_left_ = true;
  }
  // Seq_cst against arrivals: either the rank sees this, or FailWaiting() sees
  // its arrival.
  h.left_count.fetch_add(1, std::memory_order_seq_cst);
  board_->WakeRanks();
  FailWaiting();
}

void BoardKeeper::MarkGone(uint32_t local) {
  if (local >= board_->config().local_size) return;
  board_->rank(local).state.store(static_cast<uint32_t>(RankState::kLeft),
                                  std::memory_order_release);
  board_->WakeRanks();
}

bool BoardKeeper::WaitsForLeft(uint32_t slot, uint32_t* generation) const {
  const uint32_t ranks = board_->config().local_size;
  std::vector<uint32_t> reached(ranks);
  for (uint32_t i = 0; i < ranks; ++i) {
    reached[i] =
        board_->arrival(slot, i).generation.load(std::memory_order_seq_cst);
  }
  *generation = *std::max_element(reached.begin(), reached.end());
  bool incomplete = false;
  bool waits_for_left = false;
  for (uint32_t i = 0; i < ranks; ++i) {
    if (reached[i] >= *generation) continue;
    incomplete = true;
    waits_for_left = waits_for_left || local_left_[i];
  }
  // An operation that this node has not complete is unknown to the coordinator,
  // so nobody else fails it.
  return waits_for_left || (incomplete && remote_left_);
}

void BoardKeeper::FailWaiting() {
  for (uint32_t slot = 0; slot < allotted_; ++slot) {
    uint32_t generation = 0;
    if (WaitsForLeft(slot, &generation)) {
      board_->Fail(slot, generation, Code::kAborted, left_text_);
    }
  }
}

void BoardKeeper::CountLocalOperations(StatsPage* stats) {
  for (uint32_t slot = 0; slot < allotted_; ++slot) {
    const uint32_t now =
        board_->arrival(slot, 0).generation.load(std::memory_order_acquire);
    const uint32_t done = now - std::exchange(counted_[slot], now);
    if (done == 0) continue;
    const Signature s = board_->SignatureOf(slot, 0, now);
    if (!CheckSignature("", s).ok()) continue;
    StatsPage::Add(stats->operations[static_cast<int>(s.kind)], done);
    StatsPage::Add(stats->operation_bytes[static_cast<int>(s.kind)],
                   done * s.Bytes());
  }
}

void BoardKeeper::SetSleeping(bool sleeping) {
  board_->header().executor_sleeping.store(sleeping ? 1 : 0,
                                           std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace maypole::worker
