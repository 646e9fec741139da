// SiteChoice: chooses the site at which a rank's operations on CUDA tensors
// run.
//
// Purpose: MAYPOLE_GPU_SITE=auto. NCCL in this process is best where each rank
// of the node has a GPU of its own: nothing is copied, and no process but the
// ranks needs a context on the GPUs. For ranks that share a GPU the executor
// must run the operations. If ranks choose differently, operations run on the
// host, so all ranks of a job should come to the same choice: each sees on the
// board which GPUs the others of its node use, and until that is known its
// operations run on the host.
//
//   each rank has its GPU, the executors have NCCL   kRanks
//   ranks share a GPU                                kExecutors
//   the executors have no NCCL                       kExecutors
//   a rank uses no GPU for kMostOpen operations      kExecutors
//   memory was shared before the choice was made     kExecutors
//   NCCL was refused in this process                 kExecutors, from then on
//
//   SiteChoice choice(options);
//   switch (choice.Of(*communicator, *operation.set)) { ... }
//
// Thread contract: all functions may be called by any thread.
//
// Invariant: kExecutors is final.
#ifndef MAYPOLE_CLIENT_GPU_SITE_CHOICE_H_
#define MAYPOLE_CLIENT_GPU_SITE_CHOICE_H_

#include <cstdint>
#include <mutex>
#include <string>

#include "client/gpu/gpu_memory_options.h"
#include "client/session/communicator.h"

namespace maypole {

class SiteChoice {
 public:
  enum class Site : uint8_t { kOpen, kRanks, kExecutors };
  static constexpr int kMostOpen = 100;

  explicit SiteChoice(const GpuMemoryOptions& options);

  // The site for the next operation, of this set. side_by_side: its GPU runs
  // kernels of several processes side by side (Gpu::under_mps). The user is
  // told the choice once, when it is no longer open.
  Site Of(const Communicator& communicator, const ProcessSet& set,
          bool side_by_side);
  // Whether operations may be left to the executors if NCCL is refused in this
  // process.
  bool chooses() const { return options_.chooses_site; }
  void LeaveToExecutors();
  // The caller wants to share memory with the executor; false if it must not.
  bool Share();

 private:
  void Choose(Site site, std::string why);

  const GpuMemoryOptions options_;
  std::mutex mutex_;
  Site site_ = Site::kOpen;
  std::string why_;
  int open_ = 0;  // operations
  bool told_ = false;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_SITE_CHOICE_H_
