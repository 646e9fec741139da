// NetworkRunner: executes negotiated runs chunk by chunk, in ticket order.
//
// Purpose: the executor's part of the data path between nodes. For each chunk
// of each run it
//   (1) grants a place of the node ring,
//   (2) waits until all local ranks of the run (the local members of its
//       process set) have written their part of the chunk there,
//   (3) lets the backend exchange the chunk with the other nodes, in place,
//   (4) publishes it as done; then the ranks copy the result.
// All chunks that the ranks have made ready are in step (3) at the same time.
// The backend ends them in order, so step (4) is in order, too.
//
// The node ring has ring_depth places, which chunks use round robin over the
// whole epoch: chunk number G of the epoch uses place G % ring_depth, and may
// be written once all local ranks have consumed chunk G - ring_depth. Grants
// extend to later runs, so that ranks continue while the network works.
//
// Thread contract: Add() and Stop() from any thread; all other calls from one
// thread (the network thread). The backend's threads report ended chunks; they
// must have ended before this object is destroyed. Step() does not block.
//
// Invariants, as counts of chunks of the epoch:
//   consumed_ <= done <= started <= granted <= consumed_ + ring_depth
// Everything read from the board (progress words) is clamped to the run. After
// the first error no further chunk is published as done. A connection that
// breaks while no chunk is in flight is such an error, too.
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
    // All chunks have been exchanged. Called from a thread of the backend or,
    // for a run without bytes, from Add().
    std::function<void(const RunSpec& run)> on_done;
    // All ranks have left the run. Called from the network thread.
    std::function<void(uint32_t record)> on_free;
  };

  NetworkRunner(const Board* board, Backend* backend, Callbacks callbacks);

  // Adds a run whose plan is written. Its ticket must be placed afterwards, in
  // the order of these calls.
  void Add(RunSpec spec);

  // Does everything that is possible now. Returns false if there was nothing to
  // do. An error comes from the backend and is final.
  absl::StatusOr<bool> Step();

  // Steps until the board is aborted or Stop() is called (both return OK), or
  // an error occurs.
  absl::Status Run();
  void Stop();

 private:
  struct Active {
    RunSpec spec;
    RunRef ref = 0;
    uint64_t first = 0;  // number of its chunk 0 in the epoch
    uint32_t chunks = 0;
    uint32_t granted = 0;           // guarded by mutex_
    uint32_t started = 0;           // used by the network thread only
    std::atomic<uint32_t> done{0};  // written by the backend's threads
    uint32_t consumed = 0;  // by the slowest local rank; network thread only

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
  uint64_t consumed_ = 0;    // chunks of the epoch consumed by all local ranks

  std::mutex flights_mutex_;
  std::deque<std::shared_ptr<Active>> flights_;  // one per chunk in flight
  absl::Status failure_;
};

// Returns the segments of a chunk, by source and destination. `blocks` must
// ascend.
std::vector<Segment> SegmentsOf(const std::vector<NodeBlock>& blocks,
                                Range chunk);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_NETWORK_RUNNER_H_
