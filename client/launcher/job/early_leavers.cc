#include "client/launcher/job/early_leavers.h"

#include <algorithm>

#include "absl/strings/str_join.h"

namespace maypole::launcher {
namespace {

// "rank 1", "ranks 0,2,3"
std::string Ranks(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + absl::StrJoin(ranks, ",");
}

}  // namespace

void EarlyLeavers::OnRankExit(int rank, bool well, Time now) {
  running_[rank] = false;
  bool others =
      std::find(running_.begin(), running_.end(), true) != running_.end();
  if (!well || !others) return Stop();
  left_.push_back(rank);
  if (!due_) due_ = now + kLeaverPatience;
}

std::string EarlyLeavers::TakeLine(Time now) {
  if (!due_ || now < *due_) return "";
  due_ = std::nullopt;
  std::vector<int> running;
  for (size_t rank = 0; rank < running_.size(); ++rank) {
    if (running_[rank]) running.push_back(static_cast<int>(rank));
  }
  std::sort(left_.begin(), left_.end());
  std::string line =
      Ranks(left_) + " exited with code 0; waiting for " + Ranks(running);
  named_.insert(named_.end(), left_.begin(), left_.end());
  left_.clear();
  return line;
}

}  // namespace maypole::launcher
