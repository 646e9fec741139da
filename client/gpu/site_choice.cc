#include "client/gpu/site_choice.h"

#include <utility>

#include "client/session/stall_notice.h"

namespace maypole {

SiteChoice::SiteChoice(const GpuMemoryOptions& options) : options_(options) {
  if (options.chooses_site) return;
  if (options.mode == GpuMemoryMode::kOwn) {
    Choose(Site::kRanks, "MAYPOLE_GPU_SITE=client");
  } else if (options.mode == GpuMemoryMode::kNone) {
    told_ = true;  // there is no site
    Choose(Site::kExecutors, "");
  } else {
    Choose(Site::kExecutors, "MAYPOLE_GPU_SITE or MAYPOLE_GPU_MEMORY says so");
  }
}

void SiteChoice::Choose(Site site, std::string why) {
  site_ = site;
  why_ = std::move(why);
}

SiteChoice::Site SiteChoice::Of(const Communicator& communicator,
                                const ProcessSet& set, bool side_by_side) {
  std::lock_guard lock(mutex_);
  if (site_ == Site::kOpen && set.size() > 1) {
    const Communicator::GpuUse use = communicator.UseOfGpus();
    if (!communicator.executors_have_nccl()) {
      Choose(Site::kExecutors,
             "the executors of this job have no NCCL, or not all the same one");
    } else if (use == Communicator::GpuUse::kShared) {
      Choose(Site::kExecutors, "ranks of this node share a GPU");
    } else if (use == Communicator::GpuUse::kOwn) {
      Choose(Site::kRanks, "each rank of this node has a GPU of its own");
    } else if (++open_ > kMostOpen) {
      Choose(Site::kExecutors, "not all ranks of this node use a GPU");
    }
  }
  if (site_ != Site::kOpen && !std::exchange(told_, true) &&
      options_.tells_site) {
    const bool by_turns =
        site_ == Site::kExecutors && !side_by_side &&
        communicator.UseOfGpus() == Communicator::GpuUse::kShared;
    TellUser(std::string("maypole: operations on CUDA tensors run at site ") +
             (site_ == Site::kRanks ? "client, by NCCL in this process: "
                                    : "agent, in the executor of the node: ") +
             why_ +
             (by_turns ? "; the GPU runs one process after the other, with an "
                         "MPS server (nvidia-cuda-mps-control -d) all at once"
                       : ""));
  }
  return site_;
}

void SiteChoice::LeaveToExecutors() {
  std::lock_guard lock(mutex_);
  Choose(Site::kExecutors, "NCCL cannot be used in this process");
}

bool SiteChoice::Share() {
  std::lock_guard lock(mutex_);
  if (site_ == Site::kOpen) {
    Choose(Site::kExecutors, "memory was shared with it before");
  }
  return site_ == Site::kExecutors;
}

}  // namespace maypole
