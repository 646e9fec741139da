// The part of CoordinatorEpoch that compares the ranks' results.
#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator_epoch.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

absl::Status CoordinatorEpoch::OnResults(size_t node,
                                         const proto::Results& message,
                                         JobOutput* out) {
  if (checksums_ == ChecksumMode::kOff) {
    return absl::InvalidArgumentError(
        "checksums, which the job has not asked for");
  }
  std::vector<ResultDifference> found;
  absl::Status status = results_.Take(node, message, &found);
  TellDifferences(found, out);
  out->facts.emplace_back(results_.TakeCounts());
  if (found.empty() || checksums_ == ChecksumMode::kWarn) return status;
  out->Count(ErrorKind::kResultsDiffer);
  verdict_ = found.front().text;
  return status;
}

void CoordinatorEpoch::FinishResults(JobOutput* out) {
  if (checksums_ == ChecksumMode::kOff) return;
  std::vector<ResultDifference> found;
  results_.Finish(&found);
  TellDifferences(found, out);
  out->facts.emplace_back(results_.TakeCounts());
}

void CoordinatorEpoch::TellDifferences(
    const std::vector<ResultDifference>& found, JobOutput* out) {
  for (const ResultDifference& d : found) {
    if (++differences_told_ > kMaxDifferencesTold) return;
    out->Warn(absl::StrCat(
        LogPrefix("results_differ"), " kind=", d.kind,
        " tensor=", LogValue(d.tensor), " call=", d.call,
        d.certain ? " wrong=" : " suspects=", LogValue(RanksText(d.ranks)),
        " reason=", LogValue(d.text)));
  }
}

}  // namespace maypole::coordinator
