#include "worker/core/operations/name_slots.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/unnamed.h"
#include "common/wire/signature_message.h"
#include "common/wire/utf8.h"

namespace maypole::worker {
namespace {

bool HasNames(uint32_t kind) {
  return kind < static_cast<uint32_t>(Kind::kJoin);
}

}  // namespace

absl::StatusOr<uint32_t> NameSlots::Allot(SharedSet set, Kind kind,
                                          const std::string& name) {
  bool is_new = false;
  absl::StatusOr<uint32_t> slot = slots_.Allot(set, kind, name, &is_new);
  if (slot.ok() && is_new) {
    const SlotEntry& entry = *slots_.Get(*slot);
    output_.Add(AllotSlot{*slot, kind, name, std::move(set),
                          entry.splits_number, entry.first});
  }
  return slot;
}

absl::StatusOr<uint32_t> NameSlots::AllotFor(const LocalMember& member,
                                             const session::SlotRequest& r,
                                             bool* negotiated) {
  const std::string name(r.name);
  if (name.empty()) {
    return absl::InvalidArgumentError("an operation must have a name");
  }
  // The coordinator could not parse a message with such a name, and would end
  // the session.
  if (!IsUtf8(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "operation '", absl::CHexEscape(name), "': the name must be UTF-8"));
  }
  if (!HasNames(r.kind)) {
    return absl::InvalidArgumentError(absl::StrCat("operation '", name,
                                                   "': collective number ",
                                                   r.kind, " takes no names"));
  }
  const Kind kind = static_cast<Kind>(r.kind);
  const std::string what =
      absl::StrCat(std::string(Name(kind)), " '", name, "': ");
  const absl::StatusOr<SharedSet> set = sets_.Get(r.process_set);
  if (!set.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, set.status().message()));
  }
  if (!(*set)->Has(member.rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "rank ", member.rank, " is not in process set ",
                     r.process_set, " (", (*set)->RanksText(), ")"));
  }
  *negotiated = (*set)->negotiated();
  if (kind == Kind::kAlltoall && *negotiated &&
      (*set)->size() > kMaxAlltoallRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, "an alltoall over several nodes may have ", kMaxAlltoallRanks,
        " ranks, but process set ", r.process_set, " has ", (*set)->size()));
  }
  return Allot(*set, kind, name);
}

void NameSlots::Reply(const LocalMember& member,
                      const session::SlotRequest& request,
                      const absl::StatusOr<uint32_t>& slot, bool negotiated) {
  auto reply = session::Make<session::SlotReply>();
  reply.request = request.request;
  if (slot.ok()) {
    reply.slot = *slot;
    recalls_.Hand(*slot, static_cast<uint32_t>(member.local_rank));
  }
  reply.negotiated = negotiated ? 1 : 0;
  reply.code = static_cast<uint32_t>(slot.status().code());
  session::SetText(reply.text, std::string(slot.status().message()));
  output_.Add(ReplyClient{member.client, reply});
}

bool NameSlots::Answer(const LocalMember& member,
                       const session::SlotRequest& request, bool may_wait) {
  bool negotiated = false;
  const absl::StatusOr<uint32_t> slot = AllotFor(member, request, &negotiated);
  if (may_wait && absl::IsResourceExhausted(slot.status())) return false;
  Reply(member, request, slot, negotiated);
  return true;
}

void NameSlots::OnRequest(const LocalMember& member,
                          const session::SlotRequest& request) {
  clients_[static_cast<uint32_t>(member.local_rank)] = member.client;
  if (Answer(member, request, waiting_.size() < kMaxUnsentReplies)) return;
  if (!waits()) freed_ms_ = now_ms_;
  waiting_.push_back({member, request});
  Recall();
}

absl::StatusOr<SlotEntry*> NameSlots::ResolveOrAllot(
    uint32_t id, const proto::Identity* identity, uint32_t* slot) {
  if (SlotEntry* entry = slots_.Resolve(id, identity, slot)) return entry;
  if (identity == nullptr || !HasNames(identity->kind())) {
    return absl::InternalError(absl::StrCat("the coordinator refers to ",
                                            "operation ", id,
                                            ", which this node does not know"));
  }
  const SharedSet set = sets_.Find(identity->process_set());
  if (set == nullptr || set->locals.empty()) return nullptr;
  const absl::StatusOr<uint32_t> allotted =
      Allot(set, static_cast<Kind>(identity->kind()), identity->name());
  if (!allotted.ok()) return allotted.status();
  return slots_.Resolve(id, identity, slot);
}

absl::Status NameSlots::OnStandIn(const proto::StandIn& s) {
  uint32_t slot = 0;
  const absl::StatusOr<SlotEntry*> entry =
      ResolveOrAllot(s.id(), s.has_identity() ? &s.identity() : nullptr, &slot);
  if (absl::IsResourceExhausted(entry.status())) {
    if (!waits()) freed_ms_ = now_ms_;
    waiting_stand_ins_.push_back(s);
    Recall();
    return absl::OkStatus();
  }
  if (!entry.ok()) return entry.status();
  if (*entry == nullptr) return absl::OkStatus();
  const uint32_t generation = (*entry)->GenerationOf(s.generation());
  // The ranks of this node have submitted the operation meanwhile.
  if ((*entry)->reported >= generation) return absl::OkStatus();
  Signature signature = ReadSignature(s.signature(), (*entry)->set->id);
  signature.aside = 0;  // the rank that stands in says so itself
  const Status checked = CheckSignature((*entry)->name, signature);
  if (!checked.ok() || signature.kind != (*entry)->kind) {
    return absl::InternalError(
        absl::StrCat("the coordinator has requested ", (*entry)->Text(),
                     " with an invalid signature: ", checked.message(),
                     "; this is a bug in Maypole, please report it"));
  }
  wanted_[slot] = generation;
  (*entry)->recalled = false;
  output_.Add(WantSlot{slot, generation, signature});
  return absl::OkStatus();
}

bool NameSlots::WaitsForStandIn() const {
  for (const auto& [slot, generation] : wanted_) {
    const SlotEntry& entry = *slots_.Get(slot);
    if (entry.reported < generation && entry.answered < generation) return true;
  }
  return false;
}

// --- Recalling slots ---------------------------------------------------------

void NameSlots::Recall() {
  if (!waits() || freeing_ > 0 || now_ms_ < recall_ms_) return;
  recall_ms_ = now_ms_ + recall_pause_ms_;
  output_.Add(FindIdleSlots{});
}

void NameSlots::RecallNow() {
  recall_ms_ = now_ms_;
  Recall();
}

// The names of unnamed operations keep their slots as long as their process set
// exists: joined ranks derive the next name from these slots' generations.
bool NameSlots::MayRecall(uint32_t slot) const {
  const SlotEntry& entry = *slots_.Get(slot);
  if (schedule_.active() && schedule_.Has(slot)) return false;
  if (const auto it = wanted_.find(slot);
      it != wanted_.end() && it->second > entry.reported) {
    return false;
  }
  if (!slots_.has_room() || entry.kind == Kind::kAlltoall) {
    return sets_.Find(entry.set->id) == nullptr ||
           !UnnamedNumber(entry.set->id, entry.name);
  }
  return false;  // only room for splits is scarce, and this name needs none
}

void NameSlots::OnIdleSlots(const std::vector<IdleSlot>& idle) {
  SlotRecalls::Choice choice =
      recalls_.Choose(idle, [this](uint32_t slot) { return MayRecall(slot); });
  const bool none =
      choice.recalls.empty() && choice.ids.empty() && choice.free.empty();
  recall_pause_ms_ = none ? std::min(2 * recall_pause_ms_, kMostRecallPauseMs)
                          : kRecallPauseMs;
  for (const auto& [local, message] : choice.recalls) {
    output_.Add(RecallFrom{clients_.at(local), local, message});
  }
  if (!choice.ids.empty()) {
    proto::ExecutorMessage message;
    message.mutable_retire_names()->mutable_ids()->Add(choice.ids.begin(),
                                                       choice.ids.end());
    output_.Send(std::move(message));
  }
  Release(choice.free);
}

absl::Status NameSlots::OnReturn(const LocalMember& member,
                                 const session::SlotReturn& answer) {
  std::vector<uint32_t> free;
  if (!recalls_.Take(static_cast<uint32_t>(member.local_rank), answer, &free)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", member.rank,
                     " has given back slots that it was not asked for"));
  }
  Release(free);
  return absl::OkStatus();
}

void NameSlots::Release(const std::vector<uint32_t>& slots) {
  for (const uint32_t slot : slots) {
    wanted_.erase(slot);
    slots_.Release(slot);
    output_.Add(FreeSlot{slot});
  }
  freeing_ += slots.size();
  if (!slots.empty()) recall_ms_ = now_ms_;
}

absl::Status NameSlots::OnFreed(uint32_t slot, uint32_t first) {
  slots_.Reuse(slot, first);
  --freeing_;
  freed_ms_ = now_ms_;
  return ServeWaiting();
}

absl::Status NameSlots::ServeWaiting() {
  for (const proto::StandIn& s : std::exchange(waiting_stand_ins_, {})) {
    if (absl::Status status = OnStandIn(s); !status.ok()) return status;
  }
  for (auto it = waiting_.begin(); it != waiting_.end() && slots_.has_room();) {
    it = Answer(it->member, it->request, true) ? waiting_.erase(it) : it + 1;
  }
  Recall();
  return absl::OkStatus();
}

absl::Status NameSlots::OnTime(int64_t now_ms) {
  now_ms_ = now_ms;
  if (!waits()) return absl::OkStatus();
  // A rank that does not answer a recall (it may be stopped) is a straggler:
  // other ranks wait for it.
  if (now_ms - freed_ms_ < kSlotWaitMs || recalls_.silent() != 0) {
    ReportSilence();
    Recall();
    return absl::OkStatus();
  }
  for (const WaitingRequest& w : std::exchange(waiting_, {})) {
    Answer(w.member, w.request, /*may_wait=*/false);
  }
  if (waiting_stand_ins_.empty()) return absl::OkStatus();
  // No rank of this node can submit the operation, and other nodes would wait
  // forever.
  uint32_t slot = 0;
  const proto::StandIn& s = waiting_stand_ins_.front();
  return absl::ResourceExhaustedError(absl::StrCat(
      ResolveOrAllot(s.id(), &s.identity(), &slot).status().message(),
      "; the ranks of ", info_.OwnNodeText(),
      " have joined and cannot stand in for it"));
}

void NameSlots::ReportSilence() {
  const uint64_t silent = recalls_.silent();
  if (silent == 0 || waiting_.empty() || info_.stall_check_ms == 0 ||
      now_ms_ - freed_ms_ < info_.stall_check_ms) {
    return;
  }
  freed_ms_ = now_ms_;  // repeat the notice after the same time
  const int rank =
      static_cast<int>(info_.own_node().ranks(std::countr_zero(silent)));
  auto notice = session::Make<session::Notice>();
  session::SetText(
      notice.text,
      absl::StrCat(
          "maypole: ",
          std::string(Name(static_cast<Kind>(waiting_.front().request.kind))),
          " '", waiting_.front().request.name, "' waits for one of the ",
          slots_.limit(), " operation names of this node: rank ", rank,
          " has not given back those that it no longer uses; "
          "it may be stopped"));
  output_.Add(ReplyClient{waiting_.front().member.client, notice});
}

void NameSlots::RefuseWaiting(const absl::Status& why,
                              const Membership& members) {
  for (const WaitingRequest& w : std::exchange(waiting_, {})) {
    if (members.Find(w.member.client) == nullptr) continue;
    Reply(w.member, w.request, why, false);
  }
}

void NameSlots::Forget(uint32_t local) {
  std::erase_if(waiting_, [&](const WaitingRequest& w) {
    return static_cast<uint32_t>(w.member.local_rank) == local;
  });
  std::vector<uint32_t> free;
  recalls_.Forget(local, &free);
  Release(free);
}

}  // namespace maypole::worker
