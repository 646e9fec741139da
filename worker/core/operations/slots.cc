#include "worker/core/operations/slots.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace maypole::worker {

bool SlotTable::has_splits() const {
  return !free_splits_.empty() ||
         splits_made_ < std::min(limit_, kMaxSplitNames);
}

absl::Status SlotTable::CheckRoom(Kind kind, const std::string& name) const {
  const std::string what =
      absl::StrCat(std::string(Name(kind)), " '", name, "': ");
  if (!has_room()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what, "all ", limit_,
        " operation names that a job may use at the same time on this node "
        "are in use; wait for some operations before you submit others",
        limit_ < kMaxSlots ? ", or start maypole-worker with a larger --slots"
                           : ""));
  }
  if (kind == Kind::kAlltoall && !has_splits()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what, "all ", std::min(limit_, kMaxSplitNames),
        " names of alltoall that a job may use at the same time on this node "
        "are in use; wait for some operations before you submit others"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> SlotTable::Allot(SharedSet set, Kind kind,
                                          const std::string& name,
                                          bool* is_new) {
  *is_new = false;
  const std::string key = IdentityKey(set->id, kind, name);
  if (const auto it = by_identity_.find(key); it != by_identity_.end()) {
    return it->second;
  }
  if (absl::Status s = CheckRoom(kind, name); !s.ok()) return s;
  *is_new = true;
  SlotEntry entry;
  if (kind == Kind::kAlltoall) {
    if (free_splits_.empty()) free_splits_.push_back(++splits_made_);
    entry.splits_number = free_splits_.back();
    free_splits_.pop_back();
  }
  entry.set = std::move(set);
  entry.kind = kind;
  entry.name = name;
  const uint32_t slot = TakeSlot(std::move(entry));
  by_identity_[key] = slot;
  return slot;
}

uint32_t SlotTable::TakeSlot(SlotEntry entry) {
  if (free_.empty()) {
    entries_.push_back(std::move(entry));
    return allotted() - 1;
  }
  auto it = free_.lower_bound(next_free_);
  if (it == free_.end()) it = free_.begin();
  const auto [slot, first] = *it;
  free_.erase(it);
  next_free_ = slot + 1;
  entry.first = entry.base = entry.reported = entry.answered = entry.seen =
      first;
  entries_[slot] = std::move(entry);
  return slot;
}

SlotEntry* SlotTable::Resolve(uint32_t id, const proto::Identity* identity,
                              uint32_t* slot) {
  if (const auto found = by_id_.find(id); id != 0 && found != by_id_.end()) {
    *slot = found->second;
    return &entries_[*slot];
  }
  if (identity == nullptr) return nullptr;
  const auto it = by_identity_.find(
      IdentityKey(identity->process_set(), identity->kind(), identity->name()));
  if (it == by_identity_.end()) return nullptr;
  *slot = it->second;
  SlotEntry& entry = entries_[*slot];
  if (id != 0) {
    by_id_.erase(entry.id);
    by_id_[id] = *slot;
    entry.id = id;
    entry.retiring = false;
  }
  return &entry;
}

SlotEntry* SlotTable::FindId(uint32_t id) {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &entries_[it->second];
}

std::string SlotEntry::Text() const {
  return absl::StrCat(std::string(Name(kind)), " '", name, "'");
}

void SlotEntry::FillIdentity(proto::Identity* out) const {
  out->set_process_set(set->id);
  out->set_kind(static_cast<uint32_t>(kind));
  out->set_name(name);
}

const Signature* SlotEntry::Plain() const {
  if (signatures.empty() || Gathers(kind) || !gpu_tensors.empty() ||
      ranks_call_nccl) {
    return nullptr;
  }
  const Signature& first = signatures.front();
  const bool same = std::all_of(
      signatures.begin(), signatures.end(), [&first](const Signature& s) {
        return s.aside == 0 && std::memcmp(&s, &first, sizeof(s)) == 0;
      });
  return same ? &first : nullptr;
}

bool SlotEntry::IsAsBefore() const {
  const Signature* const now = Plain();
  return id != 0 && last && now != nullptr &&
         std::memcmp(&*last, now, sizeof(*now)) == 0;
}

void SlotTable::ForgetId(SlotEntry* entry) {
  by_id_.erase(entry->id);
  entry->id = 0;
  entry->last.reset();
  entry->last_decision = 0;
  entry->inputs_sent = false;
  entry->received.clear();
  entry->base = entry->answered;
  entry->retiring = false;
}

void SlotTable::ForgetIds() {
  for (SlotEntry& entry : entries_) {
    if (entry.set != nullptr && entry.set->negotiated()) ForgetId(&entry);
  }
}

void SlotTable::Release(uint32_t slot) {
  SlotEntry& entry = entries_[slot];
  by_identity_.erase(IdentityKey(entry.set->id, entry.kind, entry.name));
  by_id_.erase(entry.id);
  if (entry.splits_number != 0) free_splits_.push_back(entry.splits_number);
  entry = SlotEntry();
}

void SlotTable::Reuse(uint32_t slot, uint32_t first) { free_[slot] = first; }

SlotEntry* SlotTable::Get(uint32_t slot) {
  if (slot >= entries_.size() || entries_[slot].set == nullptr) return nullptr;
  return &entries_[slot];
}

const SlotEntry* SlotTable::Get(uint32_t slot) const {
  return const_cast<SlotTable*>(this)->Get(slot);
}

}  // namespace maypole::worker
