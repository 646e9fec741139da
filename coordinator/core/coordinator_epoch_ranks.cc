// The part of CoordinatorEpoch that handles ranks: process sets, joins, ranks
// that leave, stragglers and deadlocks.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/limits.h"
#include "coordinator/core/coordinator_epoch.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

absl::Status CoordinatorEpoch::OnSetRequest(Time now, size_t node,
                                            const proto::SetRequest& message,
                                            JobOutput* out) {
  ProcessSets::Replies replies;
  const auto busy = [this](uint32_t process_set) {
    for (const NegotiatedOperation* op : std::as_const(table_).Pending()) {
      if (op->set->id == process_set) return true;
    }
    return false;
  };
  absl::Status status = sets_.Ask(now, node, message, busy, &replies);
  for (const auto& [to, reply] : replies) {
    if (reply.code() != 0) continue;
    out->Info(absl::StrCat(
        LogPrefix(reply.remove() ? "process_set_removed" : "process_set_made"),
        " process_set=", reply.process_set(), " ranks=",
        LogValue(MembersText({reply.ranks().begin(), reply.ranks().end()}))));
  }
  SendReplies(std::move(replies), out);
  return status;
}

absl::Status CoordinatorEpoch::OnJoinState(Time now, size_t node,
                                           const proto::JoinState& message,
                                           JobOutput* out) {
  if (!members_[node].HasRank(message.rank()) || HasLeft(message.rank())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a join of rank ", message.rank(),
                     ", which is not a rank of the node or has left"));
  }
  Joins::Replies replies;
  absl::StatusOr<bool> aside = joins_.Take(node, message, &replies);
  if (!aside.ok()) return aside.status();
  SendReplies(std::move(replies), out);
  if (!*aside) return absl::OkStatus();
  stragglers_.OnAside(now, message.rank());
  for (NegotiatedOperation* op : table_.Pending()) {
    if (op->set->Has(message.rank())) AskToStandIn(op, out);
  }
  return absl::OkStatus();
}

void CoordinatorEpoch::AskToStandIn(NegotiatedOperation* op, JobOutput* out) {
  for (const size_t node : joins_.ToStandIn(op)) {
    proto::CoordinatorMessage message;
    *message.mutable_stand_in() = Joins::Request(*op);
    message.mutable_stand_in()->set_epoch(number_);
    ToNode(node, std::move(message), out);
  }
}

void CoordinatorEpoch::SendReplies(ProcessSets::Replies replies,
                                   JobOutput* out) {
  for (auto& [node, reply] : replies) {
    proto::CoordinatorMessage message;
    *message.mutable_set_reply() = std::move(reply);
    message.mutable_set_reply()->set_epoch(number_);
    if (node) {
      ToNode(*node, std::move(message), out);
    } else {
      message.mutable_set_reply()->set_decision(++decision_);
      ToAll(message, out);
    }
  }
}

void CoordinatorEpoch::SendReplies(Joins::Replies replies, JobOutput* out) {
  for (auto& [node, reply] : replies) {
    proto::CoordinatorMessage message;
    *message.mutable_join_reply() = std::move(reply);
    message.mutable_join_reply()->set_epoch(number_);
    if (node) {
      ToNode(*node, std::move(message), out);
    } else {
      message.mutable_join_reply()->set_decision(++decision_);
      ToAll(message, out);
    }
  }
}

void CoordinatorEpoch::OnRankLeft(uint32_t rank, JobOutput* out) {
  left_.push_back(rank);
  has_left_[rank] = true;
  left_untold_.push_back(rank);
  if (left_.size() <= kLeavesToldAtOnce || AllLeft()) TellLeft(out);
  const std::string who = WhoText(rank);
  for (NegotiatedOperation* op : table_.Pending()) {
    if (!op->set->Has(rank)) continue;
    buckets_.DropHeld(op->set->id);
    Fail(op, CheckSet(*op), out);
  }
  ProcessSets::Replies sets;
  sets_.OnRankLeft(rank, who, &sets);
  SendReplies(std::move(sets), out);
  Joins::Replies joins;
  joins_.OnRankLeft(who, &joins);
  SendReplies(std::move(joins), out);
  deadlock_.Wake();
  if (!AllLeft()) return;
  TellStragglerTime(out);
  FinishResults(out);
}

void CoordinatorEpoch::TellLeft(JobOutput* out) {
  const Outgoing together = LeftMessage(left_untold_);
  for (size_t i = 0; i < members_.size(); ++i) {
    SendLeft(i, left_untold_, together, out);
  }
  left_untold_.clear();
}

void CoordinatorEpoch::SendLeft(size_t node, const std::vector<uint32_t>& ranks,
                                const Outgoing& together, JobOutput* out) {
  if (Knows(node, kRankLeftOfSeveral)) return ToNode(node, together, out);
  for (const uint32_t rank : ranks) ToNode(node, LeftMessage({rank}), out);
}

Outgoing CoordinatorEpoch::LeftMessage(
    const std::vector<uint32_t>& ranks) const {
  proto::CoordinatorMessage message;
  proto::RankLeft* m = message.mutable_rank_left();
  m->set_epoch(number_);
  m->set_rank(ranks.front());
  m->mutable_others()->Assign(ranks.begin() + 1, ranks.end());
  m->set_message(
      absl::StrCat(WhoText(ranks.front()),
                   " has shut down; operations that need it cannot run"));
  return message;
}

void CoordinatorEpoch::TellStragglerTime(JobOutput* out) {
  for (size_t i = 0; i < members_.size(); ++i) {
    const Time late = table_.straggler_time().TakeUntilNow(i);
    if (late == Time::zero()) continue;
    out->facts.emplace_back(StragglerNode{job_, members_[i].node, late});
  }
}

absl::Status CoordinatorEpoch::CheckSet(const NegotiatedOperation& op) const {
  for (const uint32_t rank : left_) {
    if (!op.set->Has(rank)) continue;
    return absl::AbortedError(absl::StrCat(WhoText(rank), " has shut down; ",
                                           op.Text(), " needs it"));
  }
  if (!op.set->removed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op.Text(), " cannot run: the set has been removed"));
}

std::string CoordinatorEpoch::WhoText(uint32_t rank) const {
  for (const NodeMember& m : members_) {
    if (m.HasRank(rank)) {
      return absl::StrCat("rank ", rank, " (node ", m.node, ")");
    }
  }
  return absl::StrCat("rank ", rank);
}

void CoordinatorEpoch::CheckForStragglers(Time now, JobOutput* out) {
  const Stragglers::Report report = stragglers_.Check(now, left_);
  const std::string waited = absl::StrFormat(
      "%.1f", std::chrono::duration<double>(report.waited).count());
  if (report.over) {
    out->Info(absl::StrCat(LogPrefix("late_ranks_over"), " waited=", waited));
    Notify(told_,
           absl::StrCat("no rank is late any more (the longest wait was ",
                        waited, " s)"),
           out);
  }
  if (report.late.empty()) return;
  out->Warn(absl::StrCat(
      LogPrefix("late_ranks"), " ranks=", LogValue(RanksText(report.ranks)),
      " operations=", stragglers_.operations(), " waited=", waited,
      " reason=", LogValue(report.late)));
  if (!report.shutdown) {
    told_ = report.waiting;
    return Notify(told_, report.late, out);
  }
  out->Count(ErrorKind::kStalled);
  // Begins with the essential part, because the text may be truncated.
  verdict_ =
      absl::StrCat("the stall shutdown time (", SecondsText(stall_shutdown_),
                   ") has passed: ", report.late);
}

void CoordinatorEpoch::CheckForDeadlock(Time now, JobOutput* out) {
  Deadlock::Verdict verdict = deadlock_.Check(now, left_, sent_);
  for (const size_t node : verdict.nodes) {
    proto::CoordinatorMessage message;
    message.mutable_confirm_blocked()->set_epoch(number_);
    message.mutable_confirm_blocked()->set_round(verdict.confirm);
    ToNode(node, std::move(message), out);
  }
  if (verdict.text.empty()) return;
  out->Count(ErrorKind::kDeadlock);
  verdict_ = std::move(verdict.text);
}

void CoordinatorEpoch::Notify(const std::vector<uint32_t>& waiting,
                              const std::string& text, JobOutput* out) {
  const auto here = [this](uint32_t rank) { return !HasLeft(rank); };
  uint32_t rank = 0;
  if (const auto it = std::find_if(waiting.begin(), waiting.end(), here);
      it != waiting.end()) {
    rank = *it;
  } else {
    while (rank < size_ && !here(rank)) ++rank;
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!members_[i].HasRank(rank)) continue;
    proto::CoordinatorMessage message;
    message.mutable_notice()->set_epoch(number_);
    message.mutable_notice()->set_text(
        Cut(absl::StrCat("maypole: ", text), kMaxErrorBytes));
    return ToNode(i, std::move(message), out);
  }
}

}  // namespace maypole::coordinator
