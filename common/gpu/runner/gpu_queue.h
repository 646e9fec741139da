// GpuQueue: the executor's work on one GPU: a stream, and what is on it.
//
// Purpose: enqueues kernels, copies and NCCL's calls in batches, and says when
// a batch has ended, without waiting.
//
//   StatusOr<std::unique_ptr<GpuQueue>> made = GpuQueue::Make(gpu);
//   GpuQueue& queue = **made;
//   Status s = queue.Reduce(reduction, op);    // and more of the batch
//   s = queue.Record([](Status s) { ... });    // its end
//   const uint64_t number = queue.launched();  // of this batch
//   while (queue.Poll()) {}                    // calls the functions
//   if (queue.ended() >= number) { ... }       // memory may be released
//
// Collectives: with a nonblocking communicator, a collective is not yet on the
// stream when NCCL's call returns: an NCCL thread puts it there later, and work
// enqueued meanwhile may run before it. So only the queue has the stream.
// Collective() lends it to the caller for NCCL's calls; from then on the queue
// is launching() and enqueues nothing until EndLaunch() says that the
// communicator is ready again.
//
// Thread contract: one thread uses it.
//
// Invariants: batches have the numbers 1, 2, ...; they run and end in this
// order. No batch is begun while kMostInFlight kernels are on the stream, so
// that a launch never waits for the GPU. After an error of the GPU, all work
// that had not ended and all later work fails with that error; ended() advances
// only when the stream is empty.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_GPU_QUEUE_H_
#define MAYPOLE_COMMON_GPU_RUNNER_GPU_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/gpu/gpu.h"
#include "common/gpu/kernels/kernels.h"
#include "common/status.h"
#include "common/status_or.h"
#include "common/types.h"

namespace maypole {

class GpuQueue {
 public:
  using Done = std::function<void(Status)>;
  // A driver takes about 1,000 launches before it waits for the GPU. In flight
  // are fewer than kMostInFlight, plus those of the run begun last:
  // kMaxRunOperations with one launch each (a reducescatter that is not in
  // place: two); or, with a communicator, kMaxGpuRunOperations, each with a
  // kernel before NCCL, NCCL's, and a kernel and a copy after it; or a single
  // operation that gathers. Every call of NCCL counts, but where an operation
  // has one for each member, NCCL makes few kernels of a group's many calls.
  static constexpr size_t kMostInFlight = 128;

  static StatusOr<std::unique_ptr<GpuQueue>> Make(const cuda::Gpu& gpu);
  // Nothing may be on the stream.
  ~GpuQueue();
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;

  const cuda::Gpu& gpu() const { return gpu_; }
  // An error if this build has no kernels for the GPU. Then all work fails
  // except Collective() and a Copy() of one piece.
  Status CheckKernels() const;

  // Each of these enqueues work into the batch, and begins one if there is
  // none; or it returns an error and has enqueued nothing. While the queue is
  // launching() they return kFailedPrecondition.
  Status WriteWord(cuda::CUdeviceptr address, uint64_t value);
  Status Reduce(const cuda::Reduction& reduction, Op op);
  // WaitFor() makes the stream wait for an event that has been recorded; the
  // other records one after the batch so far. Neither begins a batch.
  Status WaitFor(cuda::CUevent event);
  Status RecordInto(cuda::CUevent event);
  // 1 to kMaxPieces, none of which overlaps what another writes.
  Status Copy(std::span<const cuda::CopiedPiece> pieces);
  // Calls `begin` with the stream, for `count` (at least 1) NCCL collectives in
  // one group, and returns its result. The queue is launching() even after an
  // error of `begin`, because NCCL may have begun.
  Status Collective(size_t count,
                    const std::function<Status(cuda::CUstream)>& begin);
  // The communicator is ready again, or has been aborted: NCCL puts nothing
  // more on the stream.
  void EndLaunch() { launching_ = false; }
  // Closes the batch (an empty one if none has begun); `done` is called when it
  // has ended. After an error, `done` is dropped and the queue enqueues nothing
  // more.
  Status Record(Done done);

  // Calls `done` of the work that has ended, in order. False if nothing has
  // changed.
  bool Poll();

  // No batch may be begun now.
  bool full() const { return launching_ || enqueued_ >= kMostInFlight; }
  bool launching() const { return launching_; }
  // The batch has begun: Record() must follow.
  bool in_batch() const { return batch_ != 0; }
  // Nothing is on the stream, and nothing is about to be.
  bool idle() const {
    return in_flight_.empty() && batch_ == 0 && !lost_ && !launching_;
  }
  // Nothing is on any stream that this process has on the GPU, those of earlier
  // epochs included.
  bool gpu_idle() const { return busy_queues_ == 0; }
  // Numbers of the last batch that was begun, and of the last that has ended.
  uint64_t launched() const { return launched_; }
  uint64_t ended() const { return ended_; }

 private:
  struct Batch {
    uint64_t number;
    size_t enqueued;
    cuda::CUevent event;
    Done done;
  };

  explicit GpuQueue(const cuda::Gpu& gpu);
  Status Open();
  Status Check(cuda::CUresult result, std::string_view call) const;
  // An error if nothing may be enqueued now.
  Status CheckReady() const;
  Status Launch(cuda::CUfunction function, unsigned blocks, unsigned threads,
                void** arguments);
  void NoteEnqueued(size_t count);
  StatusOr<cuda::CUevent> TakeEvent();
  void Fail(Status error);
  void NoteBusy();
  bool PollBatch();

  const cuda::Gpu& gpu_;
  std::atomic<int>& busy_queues_;  // of the process, on this GPU
  bool busy_ = false;              // this one counts there
  cuda::CUstream stream_ = nullptr;
  unsigned most_blocks_ = 1;
  std::vector<cuda::CUevent> free_events_;
  std::deque<Batch> in_flight_;
  size_t batch_ = 0;     // kernels that were enqueued since the last Record()
  size_t enqueued_ = 0;  // those that have not ended, these included
  bool launching_ = false;
  uint64_t launched_ = 0;
  uint64_t ended_ = 0;
  Status failure_;
  bool lost_ = false;  // no event tells when the stream's work has ended
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_GPU_QUEUE_H_
