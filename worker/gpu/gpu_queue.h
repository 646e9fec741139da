// GpuQueue: the executor's work on one GPU: a stream, and what is on it.
//
// Purpose: launches kernels and says when they have ended, without waiting.
//
//   absl::StatusOr<std::unique_ptr<GpuQueue>> queue = GpuQueue::Make(gpu);
//   absl::Status s = (*queue)->Reduce(reduction, op, [](absl::Status s) {...});
//   const uint64_t number = (*queue)->launched();   // of this work
//   while ((*queue)->Poll()) {}    // calls what has been passed for ended work
//   if ((*queue)->ended() >= number) { ... }        // memory may be released
//
// Thread contract: one thread uses it.
//
// Invariants: work has the numbers 1, 2, ...; it runs and ends in this order.
// At most kMostInFlight are on the stream, so that a launch never waits for the
// GPU. After an error of the GPU, all work that had not ended and all that
// follows fails with that error; ended() goes on only when the stream is empty.
#ifndef MAYPOLE_WORKER_GPU_GPU_QUEUE_H_
#define MAYPOLE_WORKER_GPU_GPU_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/gpu/gpu.h"
#include "common/gpu/kernels/kernels.h"
#include "common/types.h"

namespace maypole::worker {

class GpuQueue {
 public:
  using Done = std::function<void(absl::Status)>;
  // A driver takes about 1,000 launches before it waits for the GPU.
  static constexpr size_t kMostInFlight = 128;

  // An error if this build has no kernels for the GPU, too.
  static absl::StatusOr<std::unique_ptr<GpuQueue>> Make(const cuda::Gpu& gpu);
  // Nothing may be on the stream.
  ~GpuQueue();
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;

  const cuda::Gpu& gpu() const { return gpu_; }

  // Both enqueue work, or return an error and drop `done`; the work may have
  // been enqueued nevertheless, as launched() says. The queue must not be full.
  absl::Status WriteWord(cuda::CUdeviceptr address, uint64_t value, Done done);
  absl::Status Reduce(const cuda::Reduction& reduction, Op op, Done done);

  // Calls `done` of the work that has ended, in order. False if nothing has
  // changed.
  bool Poll();

  bool full() const { return in_flight_.size() >= kMostInFlight; }
  // Nothing is on the stream.
  bool idle() const { return in_flight_.empty() && !lost_; }
  // Nothing is on any stream that this process has on the GPU, those of earlier
  // epochs included.
  bool gpu_idle() const { return busy_queues_ == 0; }
  // Numbers of the last work that was enqueued, and of the last that has ended.
  uint64_t launched() const { return launched_; }
  uint64_t ended() const { return ended_; }

 private:
  struct Work {
    uint64_t number;
    cuda::CUevent event;
    Done done;
  };

  explicit GpuQueue(const cuda::Gpu& gpu);
  absl::Status Open();
  absl::Status Check(cuda::CUresult result, std::string_view call) const;
  absl::Status Launch(cuda::CUfunction function, unsigned blocks,
                      unsigned threads, void** arguments, Done done);
  absl::StatusOr<cuda::CUevent> TakeEvent();
  void Fail(absl::Status error);
  void NoteBusy();
  bool PollWork();

  const cuda::Gpu& gpu_;
  std::atomic<int>& busy_queues_;  // of the process, on this GPU
  bool busy_ = false;              // this one counts there
  cuda::CUstream stream_ = nullptr;
  unsigned most_blocks_ = 1;
  std::vector<cuda::CUevent> free_events_;
  std::deque<Work> in_flight_;
  uint64_t launched_ = 0;
  uint64_t ended_ = 0;
  absl::Status failure_;
  bool lost_ = false;  // no event tells when the stream's work has ended
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_GPU_GPU_QUEUE_H_
