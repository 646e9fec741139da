// Staging: CUDA tensors over the CPU path, by copies through page-locked
// memory.
//
// Purpose: the last link of the chain of ways to run an operation on CUDA
// tensors; it works for every kind, on any number of nodes, with any GPU, and
// its results are those of the CPU path bit by bit.
//
//   pack    on the user's stream, when the operation is submitted: the input is
//           copied to host memory, then a word in host memory is written
//           ("ready"). The operation is pending; this rank does not arrive yet
//   watch   a thread (or a thread that waits) sees the word: the rank arrives,
//           and the CPU path runs the operation on the host memory
//   unpack  on the stream of the thread that wants the result, when the
//           operation has ended: the result is copied to the output
//
// No stream ever waits for a flag or for another process, so no death can leave
// a stream stuck. The tensor is used on the user's own streams only, so its
// memory may be reused in the order of those streams, as frameworks'
// allocators do. "Ready" is written by cuStreamWriteValue64; where a device
// cannot do that, an event is queried instead.
//
//   Status s = staging->Pack(&operation, stream);   // before Start()
//   staging->Watch(operation);                      // after it
//   s = staging->AwaitInput(operation, timeout_ms);
//   s = staging->Unpack(operation, stream, to, kWhenDone);
//
// Thread contract: all functions may be called by any thread, except Leave(),
// which is called once. Pack() and Unpack() never wait for a GPU, except that
// Unpack() with kWhenDone waits for its own copy.
//
// Invariants: host memory is reused only when the copies from and to it are
// done. Watch() leads to one InputReady() or InputFailed().
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

// When Unpack() returns.
enum class UnpackReturns {
  kWhenDone,      // the output has been written
  kWhenEnqueued,  // the copy is on the stream
};

class Staging;

// The host memory of one operation, and what the GPU still does with it.
class StagedTensor {
 public:
  explicit StagedTensor(std::shared_ptr<Staging> staging)
      : staging_(std::move(staging)) {}
  ~StagedTensor();  // the GPU may still use it: Staging keeps what it needs

 private:
  friend class Staging;

  // What must not be reused before the GPU is done.
  struct Resources {
    StagingMemory::Block block;
    ReadyWord word;
    cuda::CUevent packed = nullptr;    // recorded after the word was written
    cuda::CUevent unpacked = nullptr;  // recorded after the last Unpack()
  };

  const std::shared_ptr<Staging> staging_;
  const cuda::Gpu* device_ = nullptr;  // null: not known yet, no bytes
  cuda::CUdeviceptr output_ = 0;       // the operation's own; 0: none
  uint64_t output_bytes_ = 0;
  Resources resources_;
  uint32_t looks_ = 0;  // at the word; under Staging's mutex
  std::atomic<bool> input_settled_{false};
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
  // input is not needed; output_bytes: 0 for kinds whose result is `gathered`.
  Status Pack(Operation* operation, cuda::CUstream stream, uint64_t input_bytes,
              uint64_t output_bytes);
  // The operation has been started.
  void Watch(const std::shared_ptr<Operation>& operation);

  // Sees which inputs are ready. True if one was.
  bool Look();
  // Waits until the rank has arrived or the operation has ended; results as
  // those of Communicator::Await().
  Status AwaitInput(const Operation& operation, int timeout_ms);

  // The operation has ended successfully: copies its result to `to`, or, if
  // that is 0, to the operation's output.
  Status Unpack(const Operation& operation, cuda::CUstream stream,
                cuda::CUdeviceptr to, UnpackReturns returns);

  // No input is looked at any more; ends the thread. Memory that a copy may
  // still use stays as long as its operation, and this object.
  void Leave();

  uint64_t allocated() const { return memory_.allocated(); }

 private:
  friend class StagedTensor;
  using Resources = StagedTensor::Resources;
  struct Retired {
    const cuda::Gpu* device;
    Resources resources;
  };
  // An operation whose input is ready, or will never be.
  struct Settled {
    std::shared_ptr<Operation> operation;
    Status error;
  };

  Staging(const cuda::Driver& driver, Communicator* communicator,
          std::shared_ptr<Arena> arena);
  void NoteGpu(const cuda::Gpu& device);
  Status FindDevice(const Operation& operation, uint64_t input_bytes,
                    uint64_t output_bytes, StagedTensor* tensor) const;
  Status CheckStream(const cuda::Gpu& device, cuda::CUstream stream) const;
  Status MakeMemory(Operation* operation, uint64_t input_bytes,
                    uint64_t output_bytes, StagedTensor* tensor);
  Status CopyInput(cuda::CUdeviceptr from, uint64_t bytes,
                   cuda::CUstream stream, StagedTensor* tensor);
  std::vector<Settled> TakeSettled();
  bool IsReady(StagedTensor& tensor, Status* error) const;
  Status CopyResult(const cuda::Gpu& device, const std::byte* from,
                    cuda::CUdeviceptr to, uint64_t bytes, cuda::CUstream stream,
                    StagedTensor* tensor);
  static bool IsDone(const Retired& retired);
  void Retire(const cuda::Gpu* device, const Resources& resources);
  void Reclaim();
  void FreeNow(const Retired& retired);
  Status StartThread();
  void WatchLoop();

  const cuda::Driver& driver_;
  Communicator* const communicator_;
  StagingMemory memory_;
  ReadyWords words_;

  std::atomic<const cuda::Gpu*> noted_gpu_{nullptr};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Operation>> watched_;  // by submission
  std::vector<Retired> retired_;
  bool left_ = false;
  std::thread thread_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_STAGING_H_
