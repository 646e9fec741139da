#include "worker/core/slots.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace maypole::worker {

std::string SlotTable::Key(uint32_t process_set, Kind kind,
                           const std::string& name) {
  return absl::StrCat(process_set, "/", static_cast<int>(kind), "/", name);
}

absl::StatusOr<uint32_t> SlotTable::Allot(SharedSet set, Kind kind,
                                          const std::string& name,
                                          bool* is_new) {
  *is_new = false;
  const std::string key = Key(set->id, kind, name);
  if (const auto it = by_identity_.find(key); it != by_identity_.end()) {
    return it->second;
  }
  if (entries_.size() >= limit_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        std::string(Name(kind)), " '", name, "': the job has used ", limit_,
        " different operation names on this node; use the same names in every "
        "step",
        limit_ < kMaxSlots ? ", or start maypole-worker with a larger --slots"
                           : ""));
  }
  const bool splits = kind == Kind::kAlltoall;
  const uint32_t most = std::min(limit_, kMaxSplitNames);
  if (splits && split_names_ >= most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("alltoall '", name, "': the job has used more than ", most,
                     " names of alltoall; use the same names in every step"));
  }
  *is_new = true;
  const uint32_t slot = allotted();
  SlotEntry entry;
  if (splits) entry.splits_number = ++split_names_;
  entry.set = std::move(set);
  entry.kind = kind;
  entry.name = name;
  entries_.push_back(std::move(entry));
  by_identity_[key] = slot;
  return slot;
}

SlotEntry* SlotTable::Resolve(uint32_t id, const proto::Identity* identity,
                              uint32_t* slot) {
  auto found = by_id_.find(id);
  if (id == 0 || found == by_id_.end()) {
    if (identity == nullptr) return nullptr;
    const auto it = by_identity_.find(Key(identity->process_set(),
                                          static_cast<Kind>(identity->kind()),
                                          identity->name()));
    if (it == by_identity_.end()) return nullptr;
    *slot = it->second;
    if (id != 0) {
      by_id_[id] = *slot;
      entries_[*slot].id = id;
    }
  } else {
    *slot = found->second;
  }
  return &entries_[*slot];
}

SlotEntry* SlotTable::Get(uint32_t slot) {
  return slot < entries_.size() ? &entries_[slot] : nullptr;
}

}  // namespace maypole::worker
