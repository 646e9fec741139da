#include "client/engine/rank_names.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/board/kill_point.h"
#include "common/unnamed.h"

namespace maypole {

RankName* RankNames::Find(uint32_t process_set, Kind kind,
                          std::string_view name) const {
  const auto it = names_.find(IdentityKey(process_set, kind, name));
  return it == names_.end() ? nullptr : it->second.get();
}

RankName& RankNames::FindOrAdd(uint32_t process_set, Kind kind,
                               std::string_view name) {
  std::unique_ptr<RankName>& entry =
      names_[IdentityKey(process_set, kind, name)];
  if (entry != nullptr) return *entry;
  entry = std::make_unique<RankName>();
  entry->process_set = process_set;
  entry->kind = kind;
  entry->name = name;
  auto m = session::Make<session::SlotRequest>();
  m.request = ++last_request_;
  m.process_set = process_set;
  m.kind = static_cast<uint32_t>(kind);
  session::SetText(m.name, entry->name);
  by_request_[m.request] = entry.get();
  MAYPOLE_KILL_POINT("slot.wanted");
  requests_->Send(m);
  MAYPOLE_KILL_POINT("slot.requested");
  return *entry;
}

RankName* RankNames::TakeRequested(uint32_t request) {
  const auto it = by_request_.find(request);
  if (it == by_request_.end()) return nullptr;
  RankName* const name = it->second;
  by_request_.erase(it);
  requests_->OnAnswered();
  return name;
}

Status RankNames::Allot(RankName& name, const session::SlotReply& reply) {
  if (reply.code != 0) return Status(static_cast<Code>(reply.code), reply.text);
  // Two names in one slot would mix their tensors.
  const bool fits =
      reply.slot < by_slot_.size() &&
      board_->slot(reply.slot).identity.load(std::memory_order_acquire) ==
          IdentityHash(name.process_set, name.kind, name.name);
  if (!fits) {
    return Status(Code::kInternal, "the executor allotted slot " +
                                       std::to_string(reply.slot) +
                                       ", which belongs to another operation");
  }
  MAYPOLE_KILL_POINT("slot.allotted");
  name.known = true;
  name.negotiated = reply.negotiated != 0;
  name.slot = reply.slot;
  name.base = board_->slot(reply.slot).base.load(std::memory_order_relaxed);
  // This rank may have used the name before and given the slot back.
  name.generation = board_->arrival(reply.slot, local_rank_)
                        .generation.load(std::memory_order_acquire);
  by_slot_[reply.slot] = &name;
  slots_end_ = std::max(slots_end_, reply.slot + 1);
  return Status();
}

void RankNames::Remove(const RankName& name) {
  if (name.known) by_slot_[name.slot] = nullptr;
  names_.erase(IdentityKey(name.process_set, name.kind, name.name));
}

void RankNames::Number(Operation& op) {
  Signature& s = op.signature;
  if (!op.name.empty() && s.kind != Kind::kBarrier) return;
  std::array<uint64_t, kKinds>& counts = unnamed_[s.process_set];
  if (s.kind == Kind::kBarrier) {
    s.dims = kMaxDims;
    s.shape[0] = 0;
    for (int kind = 0; kind < kMaxDims - 1; ++kind) {
      s.shape[kind + 1] = static_cast<int64_t>(counts[kind]);
    }
  }
  if (!op.name.empty()) return;
  const uint64_t n = counts[static_cast<int>(s.kind)]++;
  op.name = std::string(kUnnamedPrefix) +
            std::to_string(n % UnnamedNames(s.process_set));
}

// The number follows from the name and the generation, because a rank that has
// joined may find the others' operations in any order.
void RankNames::CountStandIn(const RankName& name) {
  const std::optional<uint64_t> number =
      UnnamedNumber(name.process_set, name.name);
  if (!number) return;
  const uint64_t before =
      (name.generation - name.base) * UnnamedNames(name.process_set);
  uint64_t& count = unnamed_[name.process_set][static_cast<size_t>(name.kind)];
  count = std::max(count, before + *number + 1);
}

std::vector<Operation*> RankNames::Waiting() const {
  std::vector<Operation*> all;
  // Does not scan all of by_slot_, because this is called often between eager
  // operations.
  for (uint32_t slot = 0; slot < slots_end_; ++slot) {
    const RankName* name = by_slot_[slot];
    if (name != nullptr && name->waiting) all.push_back(name->current.get());
  }
  return all;
}

const RankName* RankNames::FindBusy(uint32_t process_set) const {
  for (const auto& [key, name] : names_) {
    if (name->process_set == process_set && name->busy()) return name.get();
  }
  return nullptr;
}

bool RankNames::AnyQueued() const {
  return std::any_of(names_.begin(), names_.end(), [](const auto& entry) {
    return !entry.second->known || !entry.second->queue.empty();
  });
}

}  // namespace maypole
