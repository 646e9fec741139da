#include "worker/core/operations/recalls.h"

#include <algorithm>
#include <bit>
#include <set>
#include <tuple>

namespace maypole::worker {
namespace {

uint64_t Bit(uint32_t local) { return uint64_t{1} << local; }

}  // namespace

void SlotRecalls::Hand(uint32_t slot, uint32_t local) {
  SlotEntry& entry = *slots_.Get(slot);
  entry.holders |= Bit(local);
  entry.recalled = false;
  entry.used = std::max(entry.used, looks_ + 1);
}

void SlotRecalls::Note(const IdleSlot& idle) {
  SlotEntry* const entry = slots_.Get(idle.slot);
  if (entry == nullptr || entry->seen == idle.generation) return;
  entry->seen = idle.generation;
  entry->used = looks_;
}

bool SlotRecalls::IsCandidate(uint32_t slot) const {
  const SlotEntry* const entry = slots_.Get(slot);
  if (entry == nullptr || entry->asked != 0 || entry->retiring ||
      entry->reported != entry->answered || entry->on_gpu != 0) {
    return false;
  }
  // A rank that owes an answer is asked for no further slots.
  return (entry->holders & silent()) == 0;
}

SlotRecalls::Choice SlotRecalls::Choose(
    const std::vector<IdleSlot>& idle,
    const std::function<bool(uint32_t slot)>& may) {
  ++looks_;
  std::vector<uint32_t> candidates;
  for (const IdleSlot& i : idle) {
    Note(i);
    if (IsCandidate(i.slot) && may(i.slot)) candidates.push_back(i.slot);
  }
  // Among slots that were last found in use at the same look, the least often
  // used go first.
  const auto age = [this](uint32_t slot) {
    const SlotEntry& e = *slots_.Get(slot);
    return std::tuple(e.used, e.seen - e.first, slot);
  };
  const size_t count =
      std::min<size_t>(candidates.size(), std::max(1u, slots_.limit() / 8));
  std::partial_sort(candidates.begin(),
                    candidates.begin() + static_cast<ptrdiff_t>(count),
                    candidates.end(),
                    [&](uint32_t a, uint32_t b) { return age(a) < age(b); });
  candidates.resize(count);
  Choice choice;
  std::map<uint32_t, std::vector<uint32_t>> by_rank;
  for (const uint32_t slot : candidates) {
    SlotEntry& entry = *slots_.Get(slot);
    if (entry.id != 0) {
      entry.retiring = true;
      choice.ids.push_back(entry.id);
      continue;
    }
    if (entry.holders == 0) choice.free.push_back(slot);
    entry.recalled = true;
    entry.asked = entry.holders;
    for (uint64_t rest = entry.holders; rest != 0; rest &= rest - 1) {
      by_rank[static_cast<uint32_t>(std::countr_zero(rest))].push_back(slot);
    }
  }
  for (const auto& [local, all] : by_rank) {
    for (size_t i = 0; i < all.size(); i += kMaxRecall) {
      const size_t n = std::min<size_t>(kMaxRecall, all.size() - i);
      auto message = session::Make<session::SlotRecall>();
      message.count = static_cast<uint32_t>(n);
      std::copy_n(all.begin() + static_cast<ptrdiff_t>(i), n, message.slots);
      asked_[local].emplace_back(message.slots, message.slots + n);
      choice.recalls.emplace_back(local, message);
    }
  }
  return choice;
}

void SlotRecalls::Settle(uint32_t slot, uint32_t local, bool returned,
                         std::vector<uint32_t>* free) {
  SlotEntry& entry = *slots_.Get(slot);
  entry.asked &= ~Bit(local);
  if (returned) {
    entry.holders &= ~Bit(local);
  } else {
    entry.recalled = false;
  }
  if (entry.recalled && entry.holders == 0) free->push_back(slot);
}

bool SlotRecalls::Take(uint32_t local, const session::SlotReturn& answer,
                       std::vector<uint32_t>* free) {
  const auto it = asked_.find(local);
  if (it == asked_.end() || it->second.empty() || answer.count > kMaxRecall) {
    return false;
  }
  const std::vector<uint32_t> asked = std::move(it->second.front());
  it->second.pop_front();
  const std::set<uint32_t> returned(answer.slots, answer.slots + answer.count);
  for (const uint32_t slot : asked) {
    Settle(slot, local, returned.contains(slot), free);
  }
  return true;
}

uint64_t SlotRecalls::silent() const {
  uint64_t ranks = 0;
  for (const auto& [local, asked] : asked_) {
    if (!asked.empty()) ranks |= Bit(local);
  }
  return ranks;
}

void SlotRecalls::Forget(uint32_t local, std::vector<uint32_t>* free) {
  asked_.erase(local);
  for (uint32_t slot = 0; slot < slots_.allotted(); ++slot) {
    if (SlotEntry* const entry = slots_.Get(slot);
        entry != nullptr && (entry->holders & Bit(local)) != 0) {
      Settle(slot, local, true, free);
    }
  }
}

}  // namespace maypole::worker
