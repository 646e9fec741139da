// ExecutorEpoch: requests that concern all ranks: process sets and joins.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/wire/signature_message.h"
#include "worker/core/limits.h"
#include "worker/core/operations/executor_epoch.h"

namespace maypole::worker {
namespace {

// The error for a rank whose request numbers have a gap, or that has too many
// requests outstanding.
absl::Status OutOfOrder(const LocalMember& m, const char* what,
                        uint32_t number) {
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", m.rank, " has sent its ", what, " number ", number,
                   " out of order, or too many of them at once"));
}

}  // namespace

// --- Process sets ------------------------------------------------------------

absl::Status ExecutorEpoch::OnSetRequest(const LocalMember& member,
                                         const session::SetRequest& request) {
  proto::ExecutorMessage message;
  proto::SetRequest* out = message.mutable_set_request();
  out->set_rank(static_cast<uint32_t>(member.rank));
  AddMembers(request, out);
  bool first = true;
  if (request.by_members != 0) {
    out->set_by_members(true);
    if (!member_requests_.Ask(member.local_rank,
                              {member.client, request.number}, *out, &first)) {
      return OutOfOrder(member, "request for a process set", request.number);
    }
  } else {
    if (!set_requests_.Ask(member.local_rank, member.client, request.number)) {
      return OutOfOrder(member, "request for a process set", request.number);
    }
    out->set_number(request.number);
    out->set_remove(request.remove != 0);
    out->set_process_set(request.process_set);
    asked_sets_[{request.number, out->rank()}] = *out;
  }
  if (first) Send(std::move(message));
  return LeaveSchedule(proto::SCHEDULE_REQUEST, "a request for a process set");
}

absl::Status ExecutorEpoch::OnSetReply(const proto::SetReply& r) {
  const std::vector<int> ranks(r.ranks().begin(), r.ranks().end());
  // The answer to members may name a set that exists.
  const bool creates = r.code() == 0 && !r.remove() &&
                       (r.by_members() ? sets_.Find(r.process_set()) == nullptr
                                       : r.number() > sets_answered_);
  if (creates) {
    if (absl::Status s = sets_.Add(r.process_set(), ranks); !s.ok()) return s;
  }
  auto reply = session::Make<session::SetReply>();
  reply.process_set = r.process_set();
  reply.code = static_cast<uint32_t>(r.code());
  session::SetText(reply.text, r.message());
  if (r.by_members()) {
    reply.by_members = 1;
    for (const auto& [client, number] : member_requests_.Answer(r)) {
      reply.number = number;
      actions_->push_back(ReplyClient{client, reply});
    }
    return absl::OkStatus();
  }
  if (r.number() > sets_answered_) {
    sets_answered_ = r.number();
    if (r.code() == 0 && r.remove()) sets_.Remove(r.process_set());
  }
  std::erase_if(asked_sets_, [&r](const auto& asked) {
    return asked.first.first == r.number();
  });
  reply.number = r.number();
  // After a rank has left, the coordinator may answer a number more than once:
  // for ranks that asked late.
  for (const ClientId client : set_requests_.Answer(r.number())) {
    actions_->push_back(ReplyClient{client, reply});
  }
  return absl::OkStatus();
}

// --- Joins -------------------------------------------------------------------

absl::Status ExecutorEpoch::OnJoinRequest(const LocalMember& member,
                                          const session::JoinRequest& request) {
  const bool settles = request.settled != 0;
  // When a rank leaves, a join may be answered before it settles.
  if (request.number == 0 ||
      (settles
           ? joins_.last(member.local_rank) != request.number ||
                 !settled_.insert(member.local_rank).second
           : !joins_.Ask(member.local_rank, member.client, request.number))) {
    return OutOfOrder(member, "join", request.number);
  }
  if (!settles) settled_.erase(member.local_rank);
  SendJoinState(static_cast<uint32_t>(member.rank), request.number, settles);
  return LeaveSchedule(proto::SCHEDULE_REQUEST,
                       absl::StrCat("rank ", member.rank, " has joined"));
}

void ExecutorEpoch::SendJoinState(uint32_t rank, uint32_t number,
                                  bool settled) {
  proto::ExecutorMessage message;
  proto::JoinState* state = message.mutable_join_state();
  state->set_rank(rank);
  state->set_number(number);
  state->set_settled(settled);
  Send(std::move(message));
}

void ExecutorEpoch::OnJoinReply(const proto::JoinReply& r) {
  if (r.code() == 0) joins_answered_ = std::max(joins_answered_, r.number());
  auto reply = session::Make<session::JoinReply>();
  reply.number = r.number();
  reply.last_rank = r.last_rank();
  reply.code = static_cast<uint32_t>(r.code());
  session::SetText(reply.text, r.message());
  for (const ClientId client : joins_.Answer(r.number())) {
    actions_->push_back(ReplyClient{client, reply});
  }
}

absl::Status ExecutorEpoch::OnStandIn(const proto::StandIn& s) {
  uint32_t slot = 0;
  const absl::StatusOr<SlotEntry*> entry =
      ResolveOrAllot(s.id(), s.has_identity() ? &s.identity() : nullptr, &slot);
  if (absl::IsResourceExhausted(entry.status())) {
    if (!waits_for_slots()) freed_ms_ = now_ms_;
    waiting_stand_ins_.push_back(s);
    RecallSlots();
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
    return absl::InternalError(absl::StrCat(
        "the coordinator has requested ", std::string(Name((*entry)->kind)),
        " '", (*entry)->name, "' with an invalid signature: ",
        checked.message(), "; this is a bug in Maypole, please report it"));
  }
  wanted_[slot] = generation;
  (*entry)->recalled = false;
  actions_->push_back(WantSlot{slot, generation, signature});
  return absl::OkStatus();
}

}  // namespace maypole::worker
