#include "coordinator/core/liveness/stall_monitor.h"

#include <algorithm>
#include <chrono>

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
      stragglers_(nodes, departures, sets, table, joins, config.stall_check,
                  config.stall_shutdown),
      deadlock_(nodes, departures, sets, table, joins) {}

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
  const Stragglers::Report report = stragglers_.Check(now);
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
  nodes_.Count(ErrorKind::kStalled);
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
  const std::string text = deadlock_.Check(now);
  if (text.empty()) return;
  nodes_.Count(ErrorKind::kDeadlock);
  verdict_ = absl::FailedPreconditionError(text);
}

void StallMonitor::Notify(const std::vector<uint32_t>& waiting,
                          const std::string& text) {
  const auto here = [this](uint32_t rank) { return !departures_.Has(rank); };
  const auto it = std::ranges::find_if(waiting, here);
  uint32_t rank = it == waiting.end() ? 0 : *it;
  // Beyond the last rank, Has() is false.
  while (!here(rank)) ++rank;
  const std::optional<size_t> node = nodes_.NodeOf(rank);
  if (!node) return;
  proto::CoordinatorMessage message;
  message.mutable_notice()->set_text(
      Cut(absl::StrCat("maypole: ", text), kMaxErrorBytes));
  nodes_.Send(*node, message);
}

}  // namespace maypole::coordinator
