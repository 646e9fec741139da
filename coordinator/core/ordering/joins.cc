#include "coordinator/core/ordering/joins.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/wire/signature_message.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

absl::StatusOr<bool> Joins::OnState(size_t node,
                                    const proto::JoinState& message) {
  const uint32_t rank = message.rank();
  if (!departures_.ranks().empty()) {
    // If this is `settled`, the rank has been answered already: when it joined,
    // or when the other rank left.
    if (!message.settled()) SendLeft(node, message.number());
    return false;
  }
  const State expected = message.settled() ? State::kBegun : State::kAway;
  if (message.number() != number_ || ranks_[rank] != expected) {
    return InvalidArgument("join ", message.number(), " of rank ", rank,
                           message.settled() ? " is settled" : " begins",
                           " out of turn; join ", number_,
                           " is the next or under way");
  }
  if (!message.settled()) {
    ranks_[rank] = State::kBegun;
    ++begun_;
    last_ = rank;
    return true;
  }
  ranks_[rank] = State::kSettled;
  if (++settled_ < ranks_.size()) return false;
  proto::JoinReply reply;
  reply.set_number(number_++);
  reply.set_last_rank(static_cast<int32_t>(last_));
  EndJoin();
  SendReply(std::nullopt, std::move(reply));
  return false;
}

void Joins::SendLeft(std::optional<size_t> node, uint32_t number) {
  proto::JoinReply reply;
  reply.set_number(number);
  reply.set_last_rank(-1);
  reply.set_code(static_cast<int>(absl::StatusCode::kAborted));
  reply.set_message(
      Cut(absl::StrCat(nodes_.RankText(departures_.ranks().front()),
                       " has shut down; join needs every rank"),
          kMaxErrorBytes));
  SendReply(node, std::move(reply));
}

void Joins::SendReply(std::optional<size_t> node, proto::JoinReply reply) {
  nodes_.SendReply(node, std::move(reply),
                   &proto::CoordinatorMessage::mutable_join_reply);
}

void Joins::EndJoin() {
  std::ranges::fill(ranks_, State::kAway);
  begun_ = settled_ = 0;
}

void Joins::OnRankLeft() {
  if (begun_ == 0) return;
  SendLeft(std::nullopt, number_);
  EndJoin();
}

bool Joins::Aside(const RankSet& set, size_t node) const {
  const std::vector<uint32_t>& here = set.by_node[node];
  return std::ranges::all_of(here,
                             [this](uint32_t rank) { return Aside(rank); });
}

std::vector<uint32_t> Joins::Missing() const {
  std::vector<uint32_t> out;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!Aside(rank)) out.push_back(rank);
  }
  return out;
}

void Joins::RequestStandIns(NegotiatedOperation* op) {
  if (begun_ == 0 || op->present == 0) return;
  for (const size_t i : op->set->nodes) {
    NodePresence& p = op->nodes[i];
    if (p.present || p.stands_in || !Aside(*op->set, i)) continue;
    p.stands_in = true;
    proto::CoordinatorMessage message;
    *message.mutable_stand_in() = StandInOf(*op);
    nodes_.Send(i, message);
  }
}

proto::StandIn Joins::StandInOf(const NegotiatedOperation& op) const {
  uint32_t generation = 0;
  std::optional<NodePresence::Group> group;
  // Prefers the signature of ranks with inputs: they know the shape.
  for (const size_t i : op.set->nodes) {
    for (NodePresence::Group& g : op.GroupsOf(i)) {
      if (group && (group->signature.aside == 0 || g.signature.aside != 0)) {
        continue;
      }
      generation = op.nodes[i].generation;
      group = std::move(g);
    }
  }
  proto::StandIn m;
  m.set_id(op.id);
  *m.mutable_identity() = op.identity;
  m.set_generation(generation);
  m.mutable_signature()->mutable_ranks()->Assign(group->ranks.begin(),
                                                 group->ranks.end());
  WriteSignature(group->signature, m.mutable_signature());
  return m;
}

}  // namespace maypole::coordinator
