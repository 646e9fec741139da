// StatsPage: an executor's counters, in memory that the supervisor reads.
//
// Purpose: the supervisor has the only Prometheus endpoint of the node; its
// executors count in this page. The page is a sealed memfd that the supervisor
// makes and passes to the executor at its start. It survives a crash of the
// executor, and no scrape ever reaches the executor's process.
//
// The page holds plain counters, which only grow, and gauges. The executor
// writes them with relaxed atomics.
//
// Thread contract: atomics; any thread. The supervisor does not trust the page:
// a wrong value leads to a wrong metric of that job and nothing else.
#ifndef MAYPOLE_WORKER_EXECUTOR_BOARD_STATS_PAGE_H_
#define MAYPOLE_WORKER_EXECUTOR_BOARD_STATS_PAGE_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/board/board.h"
#include "common/limits.h"
#include "common/system/fd.h"
#include "common/types.h"

namespace maypole::worker {

// Upper bounds of the histograms' buckets.
inline constexpr std::array<double, 16> kRunSecondsBounds = {
    50e-6, 100e-6, 200e-6, 500e-6, 1e-3,   2e-3, 5e-3, 10e-3,
    20e-3, 50e-3,  100e-3, 200e-3, 500e-3, 1.0,  5.0,  30.0};
inline constexpr std::array<double, 14> kPresenceBounds = {
    10e-6, 30e-6, 100e-6, 300e-6, 1e-3, 3e-3, 10e-3,
    30e-3, 0.1,   0.3,    1.0,    3.0,  10.0, 60.0};
inline constexpr std::array<double, 10> kRunOperationsBounds = {
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

enum class ErrorKind {
  kRankLost = 0,
  kCoordinatorLost = 1,
  kNetwork = 2,
  kEpochAborted = 3,
  kOperationFailed = 4,
  kRefused = 5,
  kMismatch = 6,
};
inline constexpr int kErrorKinds = 7;
std::string_view Name(ErrorKind kind);

// "ranks", "nodes", "data", "agent", "input"
std::string_view Name(WaitFor what);

template <const auto& kBounds>
struct StatsHistogram {
  using Counter = std::atomic<uint64_t>;
  static constexpr const auto& bounds = kBounds;

  Counter counts[kBounds.size() + 1];  // not cumulative; the last is +Inf
  Counter sum;                         // in units

  // Adds a value of `units` times `unit`: times are counted in nanoseconds,
  // while the bounds are in seconds.
  void Observe(uint64_t units, double unit) {
    const double value = static_cast<double>(units) * unit;
    size_t i = 0;
    while (i < kBounds.size() && value > kBounds[i]) ++i;
    counts[i].fetch_add(1, std::memory_order_relaxed);
    sum.fetch_add(units, std::memory_order_relaxed);
  }
};

using GpuUuid = std::array<uint8_t, 16>;

// What a job does on one GPU of the node.
struct GpuStats {
  using Counter = std::atomic<uint64_t>;

  Counter uuid_words[2];
  Counter memory_bytes;  // gauge
  Counter operations;
  Counter operation_bytes;
  Counter operation_ns;
  Counter wait_ns;
  Counter nccl_ns;

  GpuUuid uuid() const {
    const std::array<uint64_t, 2> words = {uuid_words[0], uuid_words[1]};
    return std::bit_cast<GpuUuid>(words);
  }
  void set_uuid(const GpuUuid& uuid) {
    const auto words = std::bit_cast<std::array<uint64_t, 2>>(uuid);
    for (size_t i = 0; i < words.size(); ++i) uuid_words[i] = words[i];
  }
};

struct StatsPage {
  using Counter = std::atomic<uint64_t>;

  Counter operations[kKinds];
  Counter operation_bytes[kKinds];
  Counter network_sent;
  Counter network_received;
  Counter runs;
  Counter presence;          // operations reported to the coordinator
  Counter small_operations;  // executors have sent each other the inputs
  Counter steps;             // worker/core/liveness/step_counter.h
  Counter errors[kErrorKinds];
  Counter reconnects;
  Counter moved_connections;  // to other nodes, whose network was lost
  Counter epochs;
  Counter local_ranks;  // gauge
  Counter board_bytes;  // gauge
  Counter arena_bytes;  // gauge
  Counter state_bytes;  // gauge
  // Gauges: the other nodes of the epoch; of these, the nodes to which
  // connections are encrypted, and those to which data goes over UCX.
  Counter peer_nodes;
  Counter encrypted_nodes;
  Counter ucx_nodes;
  Counter wire_bytes_per_s;  // gauge: link_probe.h; 0 with one node
  StatsHistogram<kRunSecondsBounds> run_ns;
  StatsHistogram<kPresenceBounds> presence_ns;
  StatsHistogram<kRunOperationsBounds> run_operations;
  Counter waits[kWaitFors];
  Counter wait_ns[kWaitFors];
  // For the ranks of the running epoch, or of the last one: global rank + 1 (0
  // if there is none), for how long others have slept for this rank, and for
  // how long it has slept itself. Ranks keep these in later epochs.
  Counter rank_number[kMaxLocalRanks];
  Counter late_ns[kMaxLocalRanks];
  Counter waited_ns[kMaxLocalRanks];
  // Operations on CUDA tensors, by RunSite; those on the host count only if a
  // rank's tensor had a place on a GPU.
  Counter gpu_site_operations[3];
  Counter gpu_count;  // entries of `gpus` that are in use
  GpuStats gpus[kMaxGpus];

  void Count(ErrorKind kind) { Add(errors[static_cast<int>(kind)], 1); }
  // Sets the ranks of a new epoch, by local rank.
  void SetRanks(std::span<const int32_t> ranks);
  static void Add(Counter& counter, uint64_t n) {
    counter.fetch_add(n, std::memory_order_relaxed);
  }
};

// A mapped statistics page.
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

#endif  // MAYPOLE_WORKER_EXECUTOR_BOARD_STATS_PAGE_H_
