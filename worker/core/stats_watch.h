// StatsWatch: decides when the node sends its statistics to the coordinator:
// only while an operator watches the job (proto WatchStats).
//
// Thread contract: not synchronized; pure.
#ifndef MAYPOLE_WORKER_CORE_STATS_WATCH_H_
#define MAYPOLE_WORKER_CORE_STATS_WATCH_H_

#include <algorithm>
#include <cstdint>

#include "proto/coordinator.pb.h"
#include "worker/core/limits.h"

namespace maypole::worker {

class StatsWatch {
 public:
  void OnWatch(int64_t now_ms, const proto::WatchStats& message) {
    if (now_ms >= until_ms_) next_ms_ = now_ms;
    until_ms_ = now_ms + message.for_ms();
    every_ms_ = std::max<int64_t>(message.every_ms(), kLeastStatsPauseMs);
  }
  // Returns true if statistics are due; the next are due after the interval.
  bool Due(int64_t now_ms) {
    if (now_ms >= until_ms_ || now_ms < next_ms_) return false;
    next_ms_ = now_ms + every_ms_;
    return true;
  }

 private:
  int64_t until_ms_ = 0;
  int64_t every_ms_ = 0;
  int64_t next_ms_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_STATS_WATCH_H_
