// CommunicatorAbort: the end of an epoch's communicators.
//
// Purpose: all are aborted in one group (one after the other, freeing the first
// could wait for a kernel of the next), on a thread of its own: ncclCommAbort()
// waits for the GPUs' streams, possibly forever (NCCL's issues 564, 829).
//
//   auto abort = CommunicatorAbort::Begin(parts);
//   if (abort->done()) ...                             // ask again and again
//
// Thread contract: any thread.
//
// Invariants: once the abort has begun, nothing else uses the communicators.
// What the thread needs lives as long as the thread.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_NCCL_COMMUNICATOR_ABORT_H_
#define MAYPOLE_COMMON_GPU_RUNNER_NCCL_COMMUNICATOR_ABORT_H_

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "common/gpu/runner/nccl/communicator_part.h"

namespace maypole {

class CommunicatorAbort {
 public:
  using Parts = std::vector<std::shared_ptr<CommunicatorPart>>;

  static std::shared_ptr<CommunicatorAbort> Begin(Parts parts);
  CommunicatorAbort(const CommunicatorAbort&) = delete;
  CommunicatorAbort& operator=(const CommunicatorAbort&) = delete;

  // NCCL has released all communicators.
  bool done() const { return done_.load(std::memory_order_acquire); }

 private:
  explicit CommunicatorAbort(Parts parts) : parts_(std::move(parts)) {}
  void Main();

  const Parts parts_;
  std::atomic<bool> done_ = false;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_NCCL_COMMUNICATOR_ABORT_H_
