// StagedResources: what the GPU uses for one operation; StagingPools: the pools
// from which that comes.
//
// Purpose: memory and words must not be reused before the GPU is done with
// them, and freeing them may wait for all work of the process on its GPUs. So
// they are given back when an event shows that the GPU is done, and a separate
// thread frees them.
//
//   if (IsDone(resources)) GiveBack(resources, pools.get());
//   FreeInBackground(std::move(pools), std::move(retired));
//
// Thread contract: StagingPools: as its parts. The functions may be called by
// any thread.
#ifndef MAYPOLE_CLIENT_GPU_STAGED_RESOURCES_H_
#define MAYPOLE_CLIENT_GPU_STAGED_RESOURCES_H_

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "client/gpu/private_gpu_memory.h"
#include "client/gpu/rank_gpus.h"
#include "client/gpu/ready_words.h"
#include "client/gpu/shared_gpu_memory.h"
#include "client/gpu/staging_memory.h"
#include "common/gpu/gpu.h"

namespace maypole {

// One stream for copies on each GPU, created on first use.
class CopyStreams {
 public:
  explicit CopyStreams(const cuda::Driver& driver) : driver_(driver) {}
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  // The GPU must be current.
  Status Of(const cuda::Gpu& gpu, cuda::CUstream* stream);
  bool unused() const;

 private:
  const cuda::Driver& driver_;
  mutable std::mutex mutex_;
  std::map<const cuda::Gpu*, cuda::CUstream> streams_;
};

struct StagingPools {
  StagingMemory host;
  ReadyWords words;
  SharedGpuMemory shared;
  PrivateGpuMemory results;
  CopyStreams streams;

  // Nothing was allocated.
  bool unused() const {
    return host.allocated() == 0 && shared.unused() && results.unused() &&
           streams.unused();
  }
};

struct StagedResources {
  const cuda::Gpu* device = nullptr;  // null: nothing yet
  StagingMemory::Block block;
  StagingMemory::Block gathered;
  SharedGpuMemory::Block shared;
  PrivateGpuMemory::Block result;   // of a gather by `run`
  std::shared_ptr<RankGpuRun> run;  // uses it until it has ended
  cuda::CUdeviceptr of_user = 0;    // by SharedGpuMemory::Allocate(); 0: none
  ReadyWord word;
  cuda::CUevent copied_in = nullptr;   // recorded after the word was written
  cuda::CUevent brought = nullptr;     // recorded after the copy to the host
  cuda::CUevent copied_out = nullptr;  // recorded after the last copy out
  // Recorded when the user freed of_user, on the streams that used it.
  std::vector<cuda::CUevent> last_used = {};
  // A copy may be on a stream, but no event shows when it is done.
  bool lost = false;
};

// True if no stream uses them any longer. After an error of the device none
// does.
bool IsDone(const StagedResources& resources);
void GiveBack(const StagedResources& resources, StagingPools* pools);
// Removes those that are done and returns them.
std::vector<StagedResources> TakeDone(std::vector<StagedResources>* all);
// In a thread of its own: gives the resources back when they are done, then
// destroys the pools. If the thread cannot start, all of it stays allocated.
void FreeInBackground(std::shared_ptr<StagingPools> pools,
                      std::vector<StagedResources> retired);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_STAGED_RESOURCES_H_
