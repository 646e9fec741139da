#include "client/gpu/staged_resources.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "common/system/thread.h"

namespace maypole {
namespace {

using cuda::CurrentGpu;

// The body of a thread.
void FreeWhenIdle(StagingPools* pools, std::vector<StagedResources> retired) {
  for (;;) {
    for (const StagedResources& r : TakeDone(&retired)) GiveBack(r, pools);
    if (retired.empty()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

CopyStreams::~CopyStreams() {
  for (const auto& [gpu, stream] : streams_) {
    const CurrentGpu current(*gpu);
    driver_.cuStreamDestroy(stream);
  }
}

Status CopyStreams::Of(const cuda::Gpu& gpu, cuda::CUstream* stream) {
  std::lock_guard lock(mutex_);
  if (const auto found = streams_.find(&gpu); found != streams_.end()) {
    *stream = found->second;
    return Status();
  }
  const Status s =
      gpu.Check(driver_.cuStreamCreate(stream, cuda::CU_STREAM_NON_BLOCKING),
                "cuStreamCreate");
  if (s.ok()) streams_[&gpu] = *stream;
  return s;
}

bool CopyStreams::unused() const {
  std::lock_guard lock(mutex_);
  return streams_.empty();
}

bool IsDone(const StagedResources& r) {
  if (r.device == nullptr) return true;
  if (r.run != nullptr && !r.run->gpu_is_done()) return false;
  const CurrentGpu current(*r.device);
  const auto done = [&](cuda::CUevent event) {
    return event == nullptr ||
           r.device->driver().cuEventQuery(event) != cuda::CUDA_ERROR_NOT_READY;
  };
  return done(r.copied_in) && done(r.brought) && done(r.copied_out) &&
         std::all_of(r.last_used.begin(), r.last_used.end(), done);
}

void GiveBack(const StagedResources& r, StagingPools* pools) {
  if (r.device == nullptr) return;
  if (r.lost) return pools->host.NeverFree();
  const CurrentGpu current(*r.device);
  for (const cuda::CUevent event : {r.copied_in, r.brought, r.copied_out}) {
    if (event != nullptr) r.device->driver().cuEventDestroy(event);
  }
  for (const cuda::CUevent event : r.last_used) {
    r.device->driver().cuEventDestroy(event);
  }
  pools->words.Return(r.word);
  for (const StagingMemory::Block& block : {r.block, r.gathered}) {
    if (block.data != nullptr) pools->host.Return(block);
  }
  pools->shared.Return(r.shared);
  pools->results.Return(r.result);
  pools->shared.Free(r.of_user);
}

std::vector<StagedResources> TakeDone(std::vector<StagedResources>* all) {
  std::vector<StagedResources> done;
  std::erase_if(*all, [&](const StagedResources& r) {
    if (!IsDone(r)) return false;
    done.push_back(r);
    return true;
  });
  return done;
}

void FreeInBackground(std::shared_ptr<StagingPools> pools,
                      std::vector<StagedResources> retired) {
  std::thread thread;
  // The copy in the function is the last owner, unless a user's tensor is one.
  auto* const owned = new std::shared_ptr<StagingPools>(std::move(pools));
  const Status s = StartThread(
      [owned, retired = std::move(retired)] {
        FreeWhenIdle(owned->get(), retired);
        delete owned;
      },
      &thread);
  if (s.ok()) thread.detach();
}

}  // namespace maypole
