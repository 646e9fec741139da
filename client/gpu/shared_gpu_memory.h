// SharedGpuMemory: GPU memory that this rank shares with the executor of its
// node, which reduces tensors there.
//
// Purpose: hands out blocks of memory that the executor has also mapped, and
// names their places (common/board/gpu_place.h). It has segments on each GPU.
// When there is no room, it asks the executor for another one; until that is
// usable, the caller does without.
//
//   this rank                                   executor
//     Take(): no room                            maps the segment (descriptor)
//       allocates a segment (descriptor)         or allocates it (IPC handle);
//       GpuMemoryRequest ----------------------> writes `proof` to it
//     OnReply(): stores it    <----------------- GpuMemoryReply
//     Take(): maps the segment (IPC handle), compares the proof with the one
//       that it sent, and hands out blocks of it
//
// If the executor refuses a way of sharing, or its proof is wrong, that way is
// not tried again on that GPU. When no way is left, the user is told why, in
// one line, once per process and GPU.
//
//   SharedGpuMemory memory(*driver, options, send);
//   const SharedGpuMemory::Block block = memory.Take(gpu, bytes);
//   if (block.place != kNoGpuPlace) { ...; memory.Return(block); }
//
// Thread contract: all functions may be called by any thread. OnReply() and
// Return() do not call the driver. Take() may allocate, but does not wait for
// the executor; for a GPU it waits at most kProofPatience.
//
// Invariants: a segment is mapped until the destructor. The destructor waits
// for no GPU's work but the reading of a proof. So a block is returned only
// when neither GPU nor executor uses it any longer; a segment with a block that
// has not been returned stays mapped until the process ends. Segments of a GPU
// have at most the limit's bytes in total. Their first kGpuPlaceAlignment bytes
// are the proof's. Blocks begin at multiples of kGpuPlaceAlignment.
#ifndef MAYPOLE_CLIENT_GPU_SHARED_GPU_MEMORY_H_
#define MAYPOLE_CLIENT_GPU_SHARED_GPU_MEMORY_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "client/gpu/free_ranges.h"
#include "client/gpu/gpu_memory_options.h"
#include "client/gpu/proof_reader.h"
#include "client/gpu/shared_mapping.h"
#include "common/board/gpu_place.h"
#include "common/gpu/gpu.h"
#include "common/status.h"
#include "common/wire/session_messages.h"

namespace maypole {

class SharedGpuMemory {
 public:
  // A new segment is as large as all of the GPU's segments together, within
  // these bounds, or as the block that it is made for.
  static constexpr uint64_t kSmallestSegment = uint64_t{64} << 20;
  static constexpr uint64_t kLargestStep = uint64_t{1} << 30;
  // How long Take() waits for the copy of a proof.
  static constexpr std::chrono::milliseconds kProofPatience{5};
  // How long after a lack of memory it asks again.
  static constexpr std::chrono::milliseconds kRetryAfter{1000};
  // How long Allocate() waits for the executor.
  static constexpr std::chrono::milliseconds kAllocatePatience{2000};

  // Sends the request with the descriptor, which is valid during the call; -1:
  // there is none.
  using Send = std::function<Status(const session::GpuMemoryRequest&, int)>;

  struct Block {
    cuda::CUdeviceptr address = 0;
    uint64_t bytes = 0;
    uint64_t place = kNoGpuPlace;  // kNoGpuPlace: there is no block
  };

  SharedGpuMemory(const cuda::Driver& driver, const GpuMemoryOptions& options,
                  Send send);
  ~SharedGpuMemory();
  SharedGpuMemory(const SharedGpuMemory&) = delete;
  SharedGpuMemory& operator=(const SharedGpuMemory&) = delete;

  // False if there will never be a block.
  bool enabled() const {
    return options_.mode != GpuMemoryMode::kNone &&
           options_.mode != GpuMemoryMode::kOwn;
  }

  // Another object has sent the requests up to this number. Called before the
  // first Take().
  void SkipNumbers(uint32_t last);

  // Takes a reply of the executor. One that answers no request is ignored.
  void OnReply(const session::GpuMemoryReply& reply);

  // Memory for a tensor. There is none if bytes is 0.
  Block Take(const cuda::Gpu& gpu, uint64_t bytes);
  void Return(const Block& block);

  // Memory for a tensor of the user; 0 if there is none. Waits for a segment
  // that has been requested.
  cuda::CUdeviceptr Allocate(const cuda::Gpu& gpu, uint64_t bytes);
  // Frees what Allocate() has returned.
  void Free(cuda::CUdeviceptr address);
  // Where the range lies; kNoGpuPlace if it is not in a segment, or does not
  // begin at a multiple of kGpuPlaceAlignment.
  uint64_t PlaceOf(cuda::CUdeviceptr address, uint64_t bytes) const;

  // The epoch is over: from now on nothing is sent, and there are no blocks or
  // places. Blocks that were taken may still be returned.
  void Leave();

  uint64_t allocated() const;  // bytes of all segments
  bool unused() const;         // it has never asked for a segment

 private:
  using Clock = std::chrono::steady_clock;
  struct Segment;
  struct PerGpu;

  PerGpu& Of(const cuda::Gpu& gpu);
  Block Find(const cuda::Gpu& gpu, uint64_t bytes);
  Segment* Containing(cuda::CUdeviceptr address) const;
  bool IsComing(const cuda::Gpu& gpu);

  // The functions below need setup_mutex_.
  void Advance(PerGpu& gpu, uint64_t bytes);
  bool Settle(PerGpu& gpu);
  Status Accept(Segment& segment, const session::GpuMemoryReply& reply);
  bool ProofIsRead(const Segment& segment, Status* error);
  void Fail(PerGpu& gpu, const Status& why);
  void Ask(PerGpu& gpu, uint64_t bytes);
  Status AskFor(PerGpu& gpu, uint64_t bytes);

  const cuda::Driver& driver_;
  const GpuMemoryOptions options_;
  const Send send_;

  // Held over calls of the driver that may take long: one thread at a time asks
  // for a segment or completes one. Taken before mutex_.
  mutable std::mutex setup_mutex_;
  std::map<const cuda::Gpu*, std::unique_ptr<PerGpu>> gpus_;
  ProofReader proofs_;
  uint32_t last_number_ = 0;

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Segment>> segments_;  // usable
  std::set<uint32_t> asked_;                        // numbers; not answered
  std::map<uint32_t, session::GpuMemoryReply> replies_;
  std::map<cuda::CUdeviceptr, Block> allocations_;  // by Allocate()
  uint64_t allocated_ = 0;
  bool left_ = false;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_SHARED_GPU_MEMORY_H_
