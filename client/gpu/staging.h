// Staging: runs operations on CUDA tensors over the CPU path, by copies through
// page-locked memory; or in GPU memory shared with the executor, which works on
// them there; or by NCCL in this process.
//
// Purpose: the ways to run an operation on CUDA tensors. The one through host
// memory works for every kind, on any number of nodes, with any GPU. All give
// the results of the CPU path bit by bit.
//
//   copy in   on the user's stream, when the operation is submitted: the input
//             is copied to host memory, then a word in host memory is written
//             ("ready"). The operation is pending; this rank has not arrived
//   watch     a thread sees the word: the rank arrives, and the CPU path runs
//             the operation on the host memory
//   copy out  on the stream of the thread that wants the result, when the
//             operation has ended
//
// An operation may run on GPUs (site_choice.h). Then its input is copied to GPU
// memory that the executor has also mapped (shared_gpu_memory.h), or lies there
// already, and `gpu_place` says where; behind it, an allgather or alltoall has
// room for its result (gathered_sizes.h). If all ranks have done so (without
// NCCL in the executors: all on one node and one GPU), and all results have
// room, the executors execute it there; otherwise each rank brings its input to
// the host and continues as above.
//
//   input      gpu_place   the operation runs   result
//   on host    none        on the host          host memory -> output
//   shared     a place     on GPUs              shared memory -> output, or it
//                                               is there (ResultOnGpu)
//   shared     a place     on the host, after   host memory -> output
//                          BringToHost
//   the user's a place     in this rank's NCCL  it is there (rank_gpus.h);
//                                               gathered: memory of this
//                                               rank's -> output
//
// Small operations that executors could run are left to the host. A GPU without
// an MPS server runs one process at a time, and takes some 0.2 ms to switch to
// the next: copies in, the executor's kernel and copies out on two ranks are
// five switches, while copies from and to host memory run on engines of their
// own. docs/gpu.md has the times from which these limits come:
//
//   kCopiedHostBytes   limit for a tensor that is copied into shared memory and
//                      out of it
//   kSharedHostBytes   limit for one that lies there
//
// No stream waits for a flag or for another process, so no death can leave a
// stream stuck. (Except with NCCL in this rank: the user's stream may wait for
// NCCL's, which the end of the epoch aborts.) Only the user's own streams use
// the tensor, so its memory may be reused in stream order, as frameworks'
// allocators do. "Ready" is written by cuStreamWriteValue64; where a device
// cannot do that, an event is queried instead.
//
//   Status s = staging->CopyIn(&operation, stream, ...);   // before Start()
//   staging->Watch(operation);                             // after it
//   s = staging->CopyOut(operation, stream, to, CopyOutReturns::kWhenDone);
//
// Thread contract: all functions may be called by any thread. None waits for a
// GPU, with three exceptions: CopyOut() with kWhenDone waits for its own copy
// (and so for what the stream does before it); CopyIn() frees kept memory when
// no page-locked memory is left, and waits at most
// SharedGpuMemory::kProofPatience for new shared memory to be checked.
//
// Invariants: host memory is reused only when the copies from and to it are
// done, and freed by a separate thread, which waits for that. Watch() leads to
// one InputReady() or InputFailed(), or one call of its function, unless
// Leave() comes first.
#ifndef MAYPOLE_CLIENT_GPU_STAGING_H_
#define MAYPOLE_CLIENT_GPU_STAGING_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "client/engine/operation.h"
#include "client/gpu/gathered_sizes.h"
#include "client/gpu/gpu_memory_options.h"
#include "client/gpu/rank_gpus.h"
#include "client/gpu/site_choice.h"
#include "client/gpu/staged_resources.h"
#include "client/memory/arena.h"
#include "client/session/communicator.h"
#include "common/gpu/gpu.h"
#include "common/status.h"

namespace maypole {

enum class CopyOutReturns {
  kWhenDone,      // the output has been written
  kWhenEnqueued,  // the copy is on the stream
};

class Staging : public std::enable_shared_from_this<Staging> {
 public:
  static constexpr int64_t kCopiedHostBytes = int64_t{4} << 20;
  static constexpr int64_t kSharedHostBytes = int64_t{1} << 20;

  // Opens the driver. communicator must live until Leave() has returned; arena
  // may be null.
  static Status Open(Communicator* communicator, std::shared_ptr<Arena> arena,
                     const GpuMemoryOptions& options,
                     std::shared_ptr<Staging>* out);
  ~Staging();

  // The operation's input and output are addresses on a device: puts host
  // memory or a place in shared GPU memory in their place, and enqueues the
  // copy of the input on `stream` (null: the legacy default stream). Sets
  // input_ready to false if there is something to wait for. input_bytes: 0 if
  // this rank's input is not needed; output_bytes: 0 for kinds whose result is
  // gathered.
  Status CopyIn(Operation* operation, cuda::CUstream stream,
                uint64_t input_bytes, uint64_t output_bytes);
  // The operation has been started. on_input: called instead of the
  // communicator's InputReady() (with kOk) or InputFailed().
  using OnInput = std::function<void(const Status&)>;
  void Watch(const std::shared_ptr<Operation>& operation,
             OnInput on_input = nullptr);

  // Checks which inputs are ready. True if one was.
  bool Look();
  // For a thread that will wait for the operation: polls until the input is
  // ready, but only for a moment; then it leaves that to the watching thread.
  void SpinForInput(const Operation& operation);

  // The operation has ended successfully: copies its result to `to`, or, if
  // that is 0, to the operation's output. kCancelled: a signal interrupted the
  // wait for the copy; the same call again continues it.
  Status CopyOut(const Operation& operation, cuda::CUstream stream,
                 cuda::CUdeviceptr to, CopyOutReturns returns);

  // Stops watching inputs and ends the thread. May be called again.
  void Leave();

  // The functions below are for memory of the user (user_gpu_memory.h), which
  // may be freed after this object is gone.
  Status OpenGpu(int ordinal, const cuda::Gpu** out) const {
    return cuda::Gpu::Open(driver_, ordinal, out);
  }
  std::shared_ptr<StagingPools> pools() const { return pools_; }
  // False if no memory may be shared with the executor.
  bool SharesMemory() { return site_.Share(); }
  // Gives the resources back to the pools when they are done.
  void Retire(const StagedResources& resources);
  // Gives back the retired resources that are done now.
  void Reclaim();

  uint64_t allocated() const { return pools_->host.allocated(); }
  // For tensors of the user that lie in memory shared with the executor; lives
  // as long as any of them.
  std::shared_ptr<SharedGpuMemory> shared_gpu_memory() const {
    return {pools_, &pools_->shared};
  }

 private:
  class Tensor;

  Staging(const cuda::Driver& driver, Communicator* communicator,
          std::shared_ptr<Arena> arena, const GpuMemoryOptions& options);
  static Tensor& TensorOf(const Operation& operation);
  void NoteGpu(const cuda::Gpu& device);
  Status FindDevice(const Operation& operation, Tensor* tensor) const;
  Status CheckStream(const cuda::Gpu& device, cuda::CUstream stream) const;
  void FindLastDevice(cuda::CUstream stream, Tensor* tensor) const;
  bool MayRunOnGpu(const Operation& operation, cuda::CUdeviceptr input,
                   const Tensor& tensor, SiteChoice::Site site) const;
  // The place of an input that the result overwrites, or kNoGpuPlace.
  uint64_t PlaceOf(const Operation& operation, cuda::CUdeviceptr input,
                   const Tensor& tensor) const;
  // Sets gpu_room.
  void GuessRoom(Operation* operation, const Tensor& tensor) const;
  void TakePlace(Operation* operation, cuda::CUdeviceptr input, Tensor* tensor);
  Status MakeMemory(Operation* operation, Tensor* tensor);
  Status CopyInput(cuda::CUdeviceptr from, cuda::CUstream stream,
                   Tensor* tensor);
  // NCCL in this process (staging_ranks.cc).
  SiteChoice::Site SiteOf(const Operation& operation, const cuda::Gpu& device);
  Status TakeOwnPlace(Operation* operation, cuda::CUdeviceptr input,
                      cuda::CUstream stream, Tensor* tensor);
  static bool IsApart(Kind kind, cuda::CUdeviceptr input, const Tensor& tensor);
  std::shared_ptr<RankRun> BeginOnRank(
      const RankPart& part, const std::vector<Operation*>& operations);
  Status AwaitRun(const Operation& operation, cuda::CUstream stream,
                  CopyOutReturns returns) const;
  Status AwaitEnd(RankGpuRun& run) const;
  std::byte* GatherInto(uint64_t bytes, Tensor* tensor);
  Status BringToHost(Operation* operation, Tensor* tensor, bool* done);
  Status BeginToHost(Operation* operation, Tensor* tensor);
  void EndToHost(Tensor* tensor);
  bool AnyIsOnHost();
  bool IsReady(Tensor& tensor, Status* error) const;
  Status Enqueue(const Operation& operation, const cuda::Gpu& device,
                 cuda::CUdeviceptr to, uint64_t bytes, cuda::CUstream stream);
  // False if a signal has come.
  static bool Nap(std::chrono::microseconds time);
  Status AwaitCopy(const cuda::Gpu& device, cuda::CUevent event) const;
  void WatchLoop();

  const cuda::Driver& driver_;
  Communicator* const communicator_;
  std::shared_ptr<StagingPools> pools_;
  SiteChoice site_;
  const int64_t host_bytes_;
  const std::unique_ptr<RankGpus> own_;  // null: this rank calls no NCCL
  std::atomic<const cuda::Gpu*> noted_gpu_{nullptr};
  GatheredSizes gathered_sizes_;

  std::mutex look_mutex_;  // one thread looks at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Operation>> watched_;  // by submission
  // Being copied to the host. The watching thread wakes the driver thread when
  // a copy is done.
  std::vector<Tensor*> going_to_host_;
  bool left_ = false;
  std::thread thread_;

  std::mutex retired_mutex_;
  std::vector<StagedResources> retired_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_STAGING_H_
