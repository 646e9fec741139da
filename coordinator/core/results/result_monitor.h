// ResultMonitor: what happens when ranks' copies of a result differ.
//
// Purpose: passes the nodes' checksums to ResultComparison, logs what differs
// (at most kMaxDifferencesTold times), and gives the reason to end the epoch if
// the ranks want that.
//
//   ResultMonitor results(&nodes, &sets, ChecksumMode::kFail);
//   absl::Status s = results.OnResults(node, message);
//   if (!results.verdict().ok()) ...end the epoch with it...
//   results.Finish();                         // the epoch is over
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_COORDINATOR_CORE_RESULTS_RESULT_MONITOR_H_
#define MAYPOLE_COORDINATOR_CORE_RESULTS_RESULT_MONITOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/membership/epoch_nodes.h"
#include "coordinator/core/results/result_comparison.h"

namespace maypole::coordinator {

class ResultMonitor {
 public:
  // Both must outlive this object.
  ResultMonitor(EpochNodes* nodes, const ProcessSets* sets, ChecksumMode mode)
      : nodes_(*nodes), mode_(mode), comparison_(nodes, sets) {}

  // An error means that the executor violates the protocol.
  absl::Status OnResults(size_t node, const proto::Results& message);
  // Decides the comparisons that are still open.
  void Finish();
  // Why the epoch must end; empty if it need not.
  const absl::Status& verdict() const { return verdict_; }

 private:
  void Log(const std::vector<ResultDifference>& found);

  EpochNodes& nodes_;
  const ChecksumMode mode_;
  ResultComparison comparison_;
  uint64_t logged_ = 0;
  absl::Status verdict_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_RESULTS_RESULT_MONITOR_H_
