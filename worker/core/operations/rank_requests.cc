#include "worker/core/operations/rank_requests.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

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

absl::Status RankRequests::OnSetRequest(const LocalMember& member,
                                        const session::SetRequest& request) {
  proto::SetRequest out;
  out.set_rank(static_cast<uint32_t>(member.rank));
  AddMembers(request, &out);
  bool first = true;
  if (request.by_members != 0) {
    out.set_by_members(true);
    if (!member_requests_.Ask(member.local_rank,
                              {member.client, request.number}, out, &first)) {
      return OutOfOrder(member, "request for a process set", request.number);
    }
  } else {
    if (!set_requests_.Ask(member.local_rank, member.client, request.number)) {
      return OutOfOrder(member, "request for a process set", request.number);
    }
    out.set_number(request.number);
    out.set_remove(request.remove != 0);
    out.set_process_set(request.process_set);
    asked_sets_[{request.number, out.rank()}] = out;
  }
  if (first) SendSetRequest(out);
  return absl::OkStatus();
}

void RankRequests::SendSetRequest(const proto::SetRequest& request) {
  proto::ExecutorMessage message;
  *message.mutable_set_request() = request;
  output_.Send(std::move(message));
}

absl::Status RankRequests::OnSetReply(const proto::SetReply& r) {
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
      output_.Add(ReplyClient{client, reply});
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
  // After a rank has left, the coordinator may answer a number more than once,
  // for ranks whose requests came late.
  for (const ClientId client : set_requests_.Answer(r.number())) {
    output_.Add(ReplyClient{client, reply});
  }
  return absl::OkStatus();
}

// --- Joins -------------------------------------------------------------------

absl::Status RankRequests::OnJoinRequest(const LocalMember& member,
                                         const session::JoinRequest& request) {
  const bool settles = request.settled != 0;
  // When a rank leaves, the answer to a join may come before it is complete.
  if (request.number == 0 ||
      (settles
           ? joins_.last(member.local_rank) != request.number ||
                 !settled_.insert(member.local_rank).second
           : !joins_.Ask(member.local_rank, member.client, request.number))) {
    return OutOfOrder(member, "join", request.number);
  }
  if (!settles) settled_.erase(member.local_rank);
  SendJoinState(static_cast<uint32_t>(member.rank), request.number, settles);
  return absl::OkStatus();
}

void RankRequests::SendJoinState(uint32_t rank, uint32_t number, bool settled) {
  proto::ExecutorMessage message;
  proto::JoinState* state = message.mutable_join_state();
  state->set_rank(rank);
  state->set_number(number);
  state->set_settled(settled);
  output_.Send(std::move(message));
}

void RankRequests::OnJoinReply(const proto::JoinReply& r) {
  if (r.code() == 0) joins_answered_ = std::max(joins_answered_, r.number());
  auto reply = session::Make<session::JoinReply>();
  reply.number = r.number();
  reply.last_rank = r.last_rank();
  reply.code = static_cast<uint32_t>(r.code());
  session::SetText(reply.text, r.message());
  for (const ClientId client : joins_.Answer(r.number())) {
    output_.Add(ReplyClient{client, reply});
  }
}

// --- All of them -------------------------------------------------------------

void RankRequests::Forget(int rank, int local_rank) {
  set_requests_.Forget(local_rank);
  member_requests_.Forget(local_rank);
  std::erase_if(asked_sets_, [rank](const auto& asked) {
    return asked.first.second == static_cast<uint32_t>(rank);
  });
  joins_.Forget(local_rank);
}

bool RankRequests::AnyWaits() const {
  for (int local = 0; local < info_.own_node().ranks_size(); ++local) {
    if (WaitsForSet(local) || WaitsInJoin(local)) return true;
  }
  return false;
}

void RankRequests::FillState(proto::NodeState* state) const {
  sets_.ForEach([state](const NodeSet& set, bool removed) {
    if (set.id == 0) return;
    proto::KnownSet* known = state->add_sets();
    known->set_process_set(set.id);
    for (const int rank : set.ranks) {
      known->add_ranks(static_cast<uint32_t>(rank));
    }
    known->set_removed(removed);
  });
  state->set_sets_answered(sets_answered_);
  state->set_joins_answered(joins_answered_);
}

void RankRequests::OnRecovered() {
  for (const auto& [key, request] : asked_sets_) SendSetRequest(request);
  member_requests_.ForEach(
      [this](const proto::SetRequest& request) { SendSetRequest(request); });
  const auto& ranks = info_.own_node().ranks();
  for (int local = 0; local < ranks.size(); ++local) {
    if (!joins_.Waits(local)) continue;
    SendJoinState(ranks[local], joins_.last(local), /*settled=*/false);
    if (!settled_.contains(local)) continue;
    SendJoinState(ranks[local], joins_.last(local), /*settled=*/true);
  }
}

}  // namespace maypole::worker
