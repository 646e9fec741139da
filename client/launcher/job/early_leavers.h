// EarlyLeavers: ranks that ended well while others go on.
//
// Purpose: such a rank is nearly always one of many that end together, and
// nothing is to be said. If the others go on for long after it, they may be
// waiting for it: then one line tells who left and who is still there.
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

  // A rank has ended; well: with exit code 0.
  void OnRankExit(int rank, bool well, Time now);
  // The job ends for another reason: nothing more to say.
  void Stop() { due_ = std::nullopt; }

  std::optional<Time> deadline() const { return due_; }
  // The line, once it is due; empty otherwise. Names all that left since the
  // line before.
  std::string TakeLine(Time now);
  // The ranks that lines have named, in the order of the lines.
  const std::vector<int>& told() const { return told_; }

 private:
  std::vector<bool> running_;
  std::vector<int> left_;  // not yet told of
  std::vector<int> told_;
  std::optional<Time> due_;
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_EARLY_LEAVERS_H_
