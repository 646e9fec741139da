#include "coordinator/core/liveness/stall_monitor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

StallMonitor::StallMonitor(EpochNodes* nodes, const Departures* departures,
                           const ProcessSets* sets, const OperationTable* table,
                           const Joins* joins, const Config& config)
    : nodes_(*nodes),
      departures_(*departures),
      shutdown_(config.stall_shutdown),
      stragglers_(&nodes->members(), sets, table, joins, config.stall_check,
                  config.stall_shutdown),
      deadlock_(&nodes->members(), sets, table, joins) {}

absl::Status StallMonitor::OnLate(Time now, size_t node,
                                  const proto::LateOperations& message) {
  absl::Status status = stragglers_.Take(now, node, message);
  if (status.ok()) CheckForStragglers(now);
  return status;
}

void StallMonitor::OnEvent(Time now) {
  stragglers_.Watch(now);
  CheckForDeadlock(now);
}

void StallMonitor::OnTime(Time now) {
  if (const auto late = stragglers_.Deadline(); late && *late <= now) {
    CheckForStragglers(now);
  }
  CheckForDeadlock(now);
}

std::optional<Time> StallMonitor::Deadline() const {
  return Earlier(stragglers_.Deadline(), deadlock_.Deadline());
}

void StallMonitor::CheckForStragglers(Time now) {
  const Stragglers::Report report = stragglers_.Check(now, departures_.ranks());
  const std::string waited = absl::StrFormat(
      "%.1f", std::chrono::duration<double>(report.waited).count());
  if (report.over) {
    nodes_.Info("late_ranks_over", " waited=", waited);
    Notify(notified_,
           absl::StrCat("no rank is late any more (the longest wait was ",
                        waited, " s)"));
  }
  if (report.late.empty()) return;
  nodes_.Warn("late_ranks", " ranks=", LogValue(RanksText(report.ranks)),
              " operations=", stragglers_.operations(), " waited=", waited,
              " reason=", LogValue(report.late));
  if (!report.shutdown && !report.mutual) {
    notified_ = report.waiting;
    return Notify(notified_, report.late);
  }
  nodes_.out.Count(ErrorKind::kStalled);
  // Begins with the essential part, because the text may be truncated.
  verdict_ =
      report.shutdown
          ? absl::AbortedError(absl::StrCat("the stall shutdown time (",
                                            SecondsText(shutdown_),
                                            ") has passed: ", report.late))
          : absl::FailedPreconditionError(absl::StrCat(
                "every rank has waited for another for ",
                SecondsText(Stragglers::kMutualLimit), ": ", report.late));
}

void StallMonitor::CheckForDeadlock(Time now) {
  Deadlock::Verdict verdict =
      deadlock_.Check(now, departures_.ranks(), nodes_.sent());
  for (const size_t node : verdict.nodes) {
    proto::CoordinatorMessage message;
    message.mutable_confirm_blocked()->set_round(verdict.confirm);
    nodes_.Send(node, message);
  }
  if (verdict.text.empty()) return;
  nodes_.out.Count(ErrorKind::kDeadlock);
  verdict_ = absl::FailedPreconditionError(verdict.text);
}

void StallMonitor::Notify(const std::vector<uint32_t>& waiting,
                          const std::string& text) {
  const auto here = [this](uint32_t rank) { return !departures_.Has(rank); };
  const auto it = std::find_if(waiting.begin(), waiting.end(), here);
  uint32_t rank = it == waiting.end() ? 0 : *it;
  // Beyond the last rank, Has() is false.
  while (!here(rank)) ++rank;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].HasRank(rank)) continue;
    proto::CoordinatorMessage message;
    message.mutable_notice()->set_text(
        Cut(absl::StrCat("maypole: ", text), kMaxErrorBytes));
    return nodes_.Send(i, message);
  }
}

}  // namespace maypole::coordinator
