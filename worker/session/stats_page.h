// StatsPage: an executor's counters, in memory that the supervisor reads.
//
// Purpose: the supervisor has the one Prometheus endpoint of the node; its
// executors have none, they count here. The page is a sealed memfd, made by
// the supervisor and handed down when it starts the executor; it outlives a
// crash of the executor, and no request ever reaches the job's process.
//
//   +---------+ plain counters (they only grow, but for the
//   | 1 page  | gauges), all written by the executor with relaxed stores
//   +---------+
//
// Thread contract: atomics; any thread. The supervisor trusts nothing here: a
// wrong number is a wrong metric of that job and nothing else.
#ifndef MAYPOLE_WORKER_SESSION_STATS_PAGE_H_
#define MAYPOLE_WORKER_SESSION_STATS_PAGE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/fd.h"
#include "common/types.h"

namespace maypole::worker {

inline constexpr std::array<double, 16> kRunSecondsBounds = {
    50e-6, 100e-6, 200e-6, 500e-6, 1e-3,   2e-3, 5e-3, 10e-3,
    20e-3, 50e-3,  100e-3, 200e-3, 500e-3, 1.0,  5.0,  30.0};

enum class ErrorKind {
  kRankLost = 0,
  kCoordinatorLost = 1,
  kNetwork = 2,
  kEpochAborted = 3,
  kOperationFailed = 4,
  kRefused = 5,
};
inline constexpr int kErrorKinds = 6;
std::string_view Name(ErrorKind kind);

struct StatsPage {
  using Counter = std::atomic<uint64_t>;

  Counter operations[kKinds];
  Counter operation_bytes[kKinds];
  Counter network_sent;
  Counter network_received;
  Counter runs;
  Counter presence;  // operations reported to the coordinator
  Counter errors[kErrorKinds];
  Counter reconnects;
  Counter epochs;
  Counter local_ranks;                                // gauge
  Counter board_bytes;                                // gauge
  Counter run_seconds[kRunSecondsBounds.size() + 1];  // not cumulative
  Counter run_nanoseconds;

  void Count(ErrorKind kind) { Add(errors[static_cast<int>(kind)], 1); }
  void ObserveRun(int64_t nanoseconds);
  static void Add(Counter& counter, uint64_t n) {
    counter.fetch_add(n, std::memory_order_relaxed);
  }
};

// A mapped page.
class SharedStats {
 public:
  static absl::StatusOr<SharedStats> Create();
  static absl::StatusOr<SharedStats> Attach(Fd fd);

  StatsPage& operator*() const { return *page(); }
  StatsPage* operator->() const { return page(); }
  int fd() const { return fd_.get(); }

 private:
  SharedStats(Fd fd, Mapping mapping)
      : fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  StatsPage* page() const {
    return reinterpret_cast<StatsPage*>(mapping_.data());
  }

  Fd fd_;
  Mapping mapping_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_SESSION_STATS_PAGE_H_
