// NetworkRunner: executes negotiated runs chunk by chunk, in ticket order.
//
// Purpose: the executor's side of the data path beyond the node. For every
// chunk of every run it (1) grants a place of the node ring, (2) sees that all
// local ranks of the run (the members of its process set) have put their part
// there, (3) lets the backend exchange it with
// the other nodes, in place, (4) says `done`. Ranks take it from there.
// As many chunks are at (3) at once as the ranks have made ready; the backend
// ends them in order, so (4) is in order too.
//
// The node ring has ring_depth places, given to chunks round robin over the
// whole epoch: chunk number G of the epoch stands in place G % ring_depth, and
// may be written once chunk G - ring_depth was consumed by all local ranks.
// Grants reach into the next runs, so that ranks go on while the network works.
//
// Thread contract: Add() and Stop() from any thread; everything else from one
// thread (the network thread). Ended chunks come from threads of the backend,
// which must be gone before this object is. Step() waits only where
// Backend::Start does.
//
// Invariants, as counts of chunks of the epoch:
//   consumed_ <= done <= started <= granted <= consumed_ + ring_depth
// and everything read from the board (progress words) is clamped to the run.
// After the first error nothing is said to be done any more.
#ifndef MAYPOLE_WORKER_NETWORK_NETWORK_RUNNER_H_
#define MAYPOLE_WORKER_NETWORK_NETWORK_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/board/board.h"
#include "worker/backend/backend.h"
#include "worker/core/operations/run_spec.h"

namespace maypole::worker {

class NetworkRunner {
 public:
  struct Callbacks {
    // All chunks exchanged. From a thread of the backend's or, for a run
    // without bytes, from Add().
    std::function<void(const RunSpec& run)> on_done;
    // All ranks have left it. From the network thread.
    std::function<void(uint32_t record)> on_free;
  };

  NetworkRunner(const Board* board, Backend* backend, Callbacks callbacks);

  // Takes a run whose Plan is written; its ticket may be placed afterwards,
  // in the order of these calls.
  void Add(RunSpec spec);

  // Does what can be done now. False: nothing could. An error is the backend's
  // and final.
  absl::StatusOr<bool> Step();

  // Steps until the board is aborted (OK), Stop() (OK), or an error.
  absl::Status Run();
  void Stop();

 private:
  struct Active {
    RunSpec spec;
    RunRef ref = 0;
    uint64_t first = 0;  // number of its chunk 0 in the epoch
    uint32_t chunks = 0;
    uint32_t granted = 0;           // guarded by mutex_
    uint32_t started = 0;           // the network thread's
    std::atomic<uint32_t> done{0};  // by who hears of an ended chunk
    uint32_t consumed = 0;  // by the slowest local rank; the network thread's

    bool finished() const { return done == chunks && consumed == chunks; }
  };

  bool UpdateConsumed();
  bool Grant();
  bool GrantTo(Active& run);
  bool StartReady();
  std::shared_ptr<Active> NextReady();
  void StartChunk(const std::shared_ptr<Active>& run);
  bool Retire();
  uint32_t ReadyChunks(const Active& run) const;
  bool AllLeft(const Active& run) const;
  void Ended(const absl::Status& status);
  absl::Status Failure();

  const Board* const board_;
  Backend* const backend_;
  const Callbacks callbacks_;
  std::atomic<bool> stop_{false};

  std::mutex mutex_;                          // guards what follows
  std::deque<std::shared_ptr<Active>> runs_;  // in ticket order
  uint64_t next_chunk_ = 0;  // number of the next run's chunk 0
  uint64_t consumed_ = 0;  // chunks of the epoch all local ranks are done with

  std::mutex flights_mutex_;
  std::deque<std::shared_ptr<Active>> flights_;  // one per chunk on its way
  absl::Status failure_;
};

// The parts of a chunk by their way; neighbours with one way are one segment.
// The blocks ascend.
std::vector<Segment> SegmentsOf(const std::vector<NodeBlock>& blocks,
                                Range chunk);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_NETWORK_RUNNER_H_
