// RankGpus: the GPUs on which this rank calls NCCL itself
// (MAYPOLE_GPU_SITE=client, or auto: site_choice.h).
//
// Purpose: announces each GPU to the executor (session::GpuSharing::kOwn), and
// executes the runs that the executor plans (RunSite::kRanks) with the same
// code as executors (common/gpu/runner). Nothing is copied: NCCL reads and
// writes the user's tensors, and gathers into memory that is given to it.
//
//   gpus->PlaceOf(gpu);                  // kNoGpuPlace: not yet, or never
//   s = RankEvents::Record(gpu, stream, &events);
//   run = gpus->Begin(part, {{operation, input, output, events}});
//
//   user's stream   ... input written | ready          waits for ran | ...
//   NCCL's stream         waits for ready | NCCL | ran
//
// Thread contract: all functions may be called by any thread. Only PlaceOf()
// (which loads NCCL) and Leave() take time.
//
// Invariants: runs begin in the order of Begin(). When the epoch is over,
// NCCL's communicators are aborted, so that no stream waits for another rank
// forever.
#ifndef MAYPOLE_CLIENT_GPU_RANK_GPUS_H_
#define MAYPOLE_CLIENT_GPU_RANK_GPUS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/engine/operation.h"
#include "client/session/communicator.h"
#include "common/gpu/gpu.h"
#include "common/gpu/runner/gpu_runner.h"
#include "common/status.h"
#include "common/status_or.h"
#include "common/wire/session_messages.h"

namespace maypole {

// The events of one operation.
class RankEvents {
 public:
  // Records `ready` on the stream. The GPU must be current.
  static Status Record(const cuda::Gpu& gpu, cuda::CUstream stream,
                       std::shared_ptr<RankEvents>* out);
  ~RankEvents();
  RankEvents(const RankEvents&) = delete;
  RankEvents& operator=(const RankEvents&) = delete;

  const cuda::Gpu& gpu() const { return gpu_; }
  cuda::CUevent ready() const { return ready_; }
  cuda::CUevent ran() const { return ran_; }

 private:
  explicit RankEvents(const cuda::Gpu& gpu) : gpu_(gpu) {}

  const cuda::Gpu& gpu_;
  cuda::CUevent ready_ = nullptr;
  cuda::CUevent ran_ = nullptr;
};

class RankGpuRun : public RankRun {
 public:
  explicit RankGpuRun(std::vector<std::shared_ptr<RankEvents>> events)
      : events_(std::move(events)) {}

  Status Poll(State* state) override;
  // The run no longer uses any memory. Never true if it was abandoned.
  bool gpu_is_done() const { return gpu_is_done_.load(); }

  void Enqueued() { enqueued_.store(true, std::memory_order_release); }
  void End(Status status);
  // Ends the run for its waiters, although the GPU may be stuck in it.
  void Abandon(Status status);

 private:
  // NCCL's stream uses them until the run has ended.
  const std::vector<std::shared_ptr<RankEvents>> events_;
  std::atomic<bool> enqueued_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> gpu_is_done_{false};
  Status status_;  // written before ended_
};

// An operation's tensors: addresses in this process; 0: there is none.
struct RankTensor {
  const Operation* operation = nullptr;
  cuda::CUdeviceptr input = 0;
  cuda::CUdeviceptr output = 0;
  std::shared_ptr<RankEvents> events;
};

class RankGpus {
 public:
  // How long Leave() waits for runs under way, so that no other rank waits in
  // vain for this rank's part.
  static constexpr std::chrono::seconds kDrainPatience{5};

  // `communicator` must live until Leave() has returned.
  // `instead`: tells the user what happens on a GPU that cannot be used.
  RankGpus(const cuda::Driver& driver, Communicator* communicator,
           std::string instead)
      : driver_(driver),
        communicator_(communicator),
        instead_(std::move(instead)) {}
  ~RankGpus() { Leave(); }
  RankGpus(const RankGpus&) = delete;
  RankGpus& operator=(const RankGpus&) = delete;

  // Whether NCCL can do the operation without changing its input (without our
  // kernels if this build has none).
  static bool CanRun(const Operation& operation);
  // The place of tensors on this GPU; kNoGpuPlace: not yet, or never. Announces
  // the GPU to the executor on first use. If the GPU cannot be used, the user
  // is told why, once.
  uint64_t PlaceOf(const cuda::Gpu& gpu);
  // True if the GPU cannot be used.
  bool IsRefused(const cuda::Gpu& gpu);
  // From now on announces no more GPUs. Returns the number of the last request
  // for GPU memory.
  uint32_t StopAnnouncing();
  std::shared_ptr<RankGpuRun> Begin(const RankPart& part,
                                    const std::vector<RankTensor>& tensors);

  // Messages of the executor.
  void OnReply(const session::GpuMemoryReply& reply);
  void OnConnect(const session::ConnectGpu& connect);
  void OnEpochOver();
  // Ends all runs under way. May be called again.
  void Leave();

 private:
  struct OwnGpu {
    uint32_t number = 0;     // of the request
    int64_t executors = -1;  // number; -1: no answer yet
    int64_t runners = -1;    // as above, in this process
    bool refused = false;
  };
  using RunKey = std::pair<uint32_t /*slot*/, uint32_t /*generation*/>;

  Status Announce(const cuda::Gpu& gpu);
  Status FindNccl(uint32_t* version, std::string* path) const;
  void MakeRunner(const std::string& nccl_library);
  void Refuse(const cuda::Gpu& gpu, const std::string& why);
  void TellOnce(const cuda::Gpu& gpu, const std::string& why) const;
  void OnOpened(StatusOr<OpenedGpuMemory> opened);
  void OnEnqueued(const GpuRun& run);
  void OnEnded(const GpuRun& run, const Status& status);
  static GpuOperation Describe(const RankPart& part, const RankTensor& tensor,
                               uint32_t gpu);
  bool Drained();

  const cuda::Driver& driver_;
  Communicator* const communicator_;
  const std::string instead_;

  // One thread at a time calls the runner. Taken before mutex_.
  std::mutex runner_mutex_;
  std::unique_ptr<GpuRunner> runner_;
  bool left_ = false;
  bool announces_ = true;

  std::mutex mutex_;
  std::map<const cuda::Gpu*, OwnGpu> gpus_;
  uint32_t last_number_ = 0;
  std::deque<const cuda::Gpu*> opening_;  // in the runner, in this order
  std::set<uint32_t> connected_;          // communicators
  std::set<uint32_t> awaited_;            // needed by runs, not connected
  std::map<RunKey, std::shared_ptr<RankGpuRun>> runs_;  // that have not ended
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_GPU_RANK_GPUS_H_
