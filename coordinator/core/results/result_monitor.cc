#include "coordinator/core/results/result_monitor.h"

#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

absl::Status ResultMonitor::OnResults(size_t node,
                                      const proto::Results& message) {
  if (mode_ == ChecksumMode::kOff) {
    return InvalidArgument("checksums, which the job has not asked for");
  }
  std::vector<ResultDifference> found;
  absl::Status status = comparison_.Take(node, message, &found);
  Log(found);
  if (found.empty() || mode_ == ChecksumMode::kWarn) return status;
  nodes_.Count(ErrorKind::kResultsDiffer);
  verdict_ = absl::AbortedError(found.front().text);
  return status;
}

void ResultMonitor::Finish() {
  if (mode_ == ChecksumMode::kOff) return;
  std::vector<ResultDifference> found;
  comparison_.Finish(&found);
  Log(found);
}

void ResultMonitor::Log(const std::vector<ResultDifference>& found) {
  for (const ResultDifference& d : found) {
    if (++logged_ > kMaxDifferencesTold) break;
    nodes_.Warn("results_differ", " kind=", d.kind,
                " tensor=", LogValue(d.tensor), " call=", d.call,
                d.certain ? " wrong=" : " suspects=",
                LogValue(RanksText(d.ranks)), " reason=", LogValue(d.text));
  }
  nodes_.Report(comparison_.TakeCounts());
}

}  // namespace maypole::coordinator
