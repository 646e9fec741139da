// EarlyLeavers: ranks that exited with code 0 while others keep running.
//
// Purpose: usually all ranks end at about the same time, and no message is
// needed. If others keep running long after a rank has left, they may be
// waiting for it; then one line names the ranks that left and those that still
// run.
//
//   running: 0,2,3   left: 1 at t   ->   at t + kLeaverPatience
//   "rank 1 exited with code 0; waiting for ranks 0,2,3"
//
// Thread contract: a value; not synchronized. Times are the caller's.
#ifndef MAYPOLE_CLIENT_LAUNCHER_JOB_EARLY_LEAVERS_H_
#define MAYPOLE_CLIENT_LAUNCHER_JOB_EARLY_LEAVERS_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "client/launcher/output/lines.h"

namespace maypole::launcher {

inline constexpr std::chrono::milliseconds kLeaverPatience{10000};

class EarlyLeavers {
 public:
  explicit EarlyLeavers(int ranks) : running_(ranks, true) {}

  // A rank has ended. well: its exit code was 0.
  void OnRankExit(int rank, bool well, Time now);
  // The job ends for another reason: no more lines are due.
  void Stop() { due_ = std::nullopt; }

  std::optional<Time> deadline() const { return due_; }
  // Returns the line when it is due, otherwise "". The line names all ranks
  // that left since the previous line.
  std::string TakeLine(Time now);
  // The ranks that the lines so far have named, in that order.
  const std::vector<int>& named() const { return named_; }

 private:
  std::vector<bool> running_;
  std::vector<int> left_;  // not yet named in a line
  std::vector<int> named_;
  std::optional<Time> due_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_EARLY_LEAVERS_H_
