// Staging: CUDA tensors over the CPU path, by copies through page-locked
// memory.
//
// Purpose: the last link of the chain of ways to run an operation on CUDA
// tensors; it works for every kind, on any number of nodes, with any GPU, and
// its results are those of the CPU path bit by bit.
//
//   copy in   on the user's stream, when the operation is submitted: the input
//             is copied to host memory, then a word in host memory is written
//             ("ready"). The operation is pending; this rank has not arrived
//   watch     a thread sees the word: the rank arrives, and the CPU path runs
//             the operation on the host memory
//   copy out  on the stream of the thread that wants the result, when the
//             operation has ended
//
// No stream waits for a flag or for another process, so no death can leave a
// stream stuck. The tensor is used on the user's own streams only, so its
// memory may be reused in the order of those streams, as frameworks' allocators
// do. "Ready" is written by cuStreamWriteValue64; where a device cannot do
// that, an event is queried instead.
//
//   Status s = staging->CopyIn(&operation, stream, ...);   // before Start()
//   staging->Watch(operation);                             // after it
//   s = staging->CopyOut(operation, stream, to, CopyOutReturns::kWhenDone);
//
// Thread contract: all functions may be called by any thread. None waits for a
// GPU, with two exceptions: CopyOut() with kWhenDone waits for its own copy (and
// so for what the stream does before it), and CopyIn() frees what is kept when
// there is no page-locked memory left.
//
// Invariants: host memory is reused only when the copies from and to it are
// done, and freed by a thread of its own, which waits for that. Watch() leads
// to one InputReady() or InputFailed(), unless Leave() comes first.
#ifndef MAYPOLE_CLIENT_GPU_STAGING_H_
#define MAYPOLE_CLIENT_GPU_STAGING_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "client/engine/operation.h"
#include "client/gpu/ready_words.h"
#include "client/gpu/staging_memory.h"
#include "client/memory/arena.h"
#include "client/session/communicator.h"
#include "common/gpu/gpu.h"
#include "common/status.h"

namespace maypole {

enum class CopyOutReturns {
  kWhenDone,      // the output has been written
  kWhenEnqueued,  // the copy is on the stream
};

// What must not be reused before the GPU is done with it.
struct StagedResources {
  const cuda::Gpu* device = nullptr;  // null: nothing yet
  StagingMemory::Block block;
  StagingMemory::Block gathered;
  ReadyWord word;
  cuda::CUevent copied_in = nullptr;   // recorded after the word was written
  cuda::CUevent copied_out = nullptr;  // recorded after the last copy out
  // A copy may be on a stream, but no event tells when it is done.
  bool lost = false;
};

class Staging : public std::enable_shared_from_this<Staging> {
 public:
  // Opens the driver. communicator must live until Leave() has returned; arena
  // may be null.
  static Status Open(Communicator* communicator, std::shared_ptr<Arena> arena,
                     std::shared_ptr<Staging>* out);
  ~Staging();

  // The operation's input and output are addresses on a device: makes host
  // memory for them, puts that in their place, and enqueues the copy of the
  // input on `stream` (null: the legacy default stream). Sets input_ready to
  // false if there is something to wait for. input_bytes: 0 if this rank's
  // input is not needed; output_bytes: 0 for kinds whose result is gathered.
  Status CopyIn(Operation* operation, cuda::CUstream stream,
                uint64_t input_bytes, uint64_t output_bytes);
  // The operation has been started.
  void Watch(const std::shared_ptr<Operation>& operation);

  // Sees which inputs are ready. True if one was.
  bool Look();
  // For a thread that will wait for the operation: looks until the input is
  // ready, but only for a moment; then the watching thread does.
  void SpinForInput(const Operation& operation);

  // The operation has ended successfully: copies its result to `to`, or, if
  // that is 0, to the operation's output. kCancelled: a signal interrupted the
  // wait for the copy; the same call again continues it.
  Status CopyOut(const Operation& operation, cuda::CUstream stream,
                 cuda::CUdeviceptr to, CopyOutReturns returns);

  // No input is looked at any more; ends the thread. May be called again.
  void Leave();

  uint64_t allocated() const { return memory_->allocated(); }

 private:
  class Tensor;
  // An operation whose input is ready, or will never be.
  struct Settled {
    std::shared_ptr<Operation> operation;
    Status error;
  };

  Staging(const cuda::Driver& driver, Communicator* communicator,
          std::shared_ptr<Arena> arena);
  static Tensor& TensorOf(const Operation& operation);
  void NoteGpu(const cuda::Gpu& device);
  Status FindDevice(const Operation& operation, uint64_t input_bytes,
                    uint64_t output_bytes, Tensor* tensor) const;
  Status CheckStream(const cuda::Gpu& device, cuda::CUstream stream) const;
  Status MakeMemory(Operation* operation, uint64_t input_bytes,
                    uint64_t output_bytes, Tensor* tensor);
  Status CopyInput(cuda::CUdeviceptr from, uint64_t bytes,
                   cuda::CUstream stream, Tensor* tensor);
  std::byte* GatherInto(uint64_t bytes, Tensor* tensor);
  bool IsReady(Tensor& tensor, Status* error) const;
  Status Enqueue(const Operation& operation, const cuda::Gpu& device,
                 cuda::CUdeviceptr to, uint64_t bytes, cuda::CUstream stream);
  Status AwaitCopy(const cuda::Gpu& device, cuda::CUevent event) const;
  void Retire(const StagedResources& resources);
  void Reclaim();
  void WatchLoop();

  const cuda::Driver& driver_;
  Communicator* const communicator_;
  const std::shared_ptr<StagingMemory> memory_;
  const std::shared_ptr<ReadyWords> words_;
  std::atomic<const cuda::Gpu*> noted_gpu_{nullptr};

  std::mutex look_mutex_;  // one thread looks at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Operation>> watched_;  // by submission
  bool left_ = false;
  std::thread thread_;

  std::mutex retired_mutex_;
  std::vector<StagedResources> retired_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_STAGING_H_
