// CommunicatorPart: this node's part of a communicator, and the thread that
// connects it.
//
// Purpose: the GPUs of this node connect in one group, on a thread of their
// own, with a time limit.
//
//   auto part = CommunicatorPart::Make(communicator, gpus, id, library,
//                                      timeout);
//   part->Connect();                         // when the GPUs run nothing
//   if (part->state() == CommunicatorPart::State::kReady) {
//     part->nccl().ncclAllReduce(..., part->at(0).handle(), stream);
//   }
//
// Why a thread: NCCL before 2.27 keeps the state of a group that has not ended
// in the thread that began it. So a thread may have one such group, and must
// live as long as the group. The runner's thread has the groups of collectives.
//
//        Connect()            all connected         CommunicatorAbort
//   kNew -----> kConnecting ----> kReady ------------------> aborted
//     |              |                                          ^
//     +--------------+----------> kFailed ----------------------+
//                      an error, the time limit, StopConnecting()
//
// Thread contract: state() and error() may be called by any thread. One thread
// at a time may call Connect() and at(): the runner's (at() once the state is
// kReady, until an abort has begun), then CommunicatorAbort's.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_NCCL_COMMUNICATOR_PART_H_
#define MAYPOLE_COMMON_GPU_RUNNER_NCCL_COMMUNICATOR_PART_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/gpu/gpu.h"
#include "common/gpu/nccl/nccl.h"
#include "common/gpu/runner/gpu_run.h"
#include "common/gpu/runner/nccl/nccl_communicator.h"
#include "common/status.h"
#include "common/status_or.h"

namespace maypole {

class CommunicatorPart : public std::enable_shared_from_this<CommunicatorPart> {
 public:
  enum class State { kNew, kConnecting, kReady, kFailed };

  // `gpus` are those of the communicator, in its order; `library` is for
  // nccl::OpenNccl().
  static std::shared_ptr<CommunicatorPart> Make(
      GpuCommunicator communicator, std::vector<const cuda::Gpu*> gpus,
      const nccl::ncclUniqueId& id, std::string library,
      std::chrono::milliseconds timeout);
  CommunicatorPart(const CommunicatorPart&) = delete;
  CommunicatorPart& operator=(const CommunicatorPart&) = delete;

  // Begins to connect, and starts the time limit. Does nothing unless the state
  // is kNew. While connecting, NCCL allocates and maps memory of the GPUs.
  void Connect();

  const GpuCommunicator& communicator() const { return communicator_; }
  State state() const;
  Status error() const;  // kFailed only

  const nccl::Nccl& nccl() const { return *nccl_; }
  size_t size() const { return communicators_.size(); }
  NcclCommunicator& at(size_t i) const { return *communicators_[i]; }
  // NcclCommunicator::Ready() over all GPUs.
  StatusOr<bool> Ready() const;

  // --- For CommunicatorAbort ---
  void StopConnecting();
  // Waits until the thread no longer uses NCCL.
  void WaitUntilQuiet();
  // The handles that NCCL has made. Waits briefly for one that is being made.
  std::vector<nccl::ncclComm_t> Handles() const;
  void NoteAborted();

 private:
  CommunicatorPart(GpuCommunicator communicator,
                   std::vector<const cuda::Gpu*> gpus,
                   const nccl::ncclUniqueId& id, std::string library,
                   std::chrono::milliseconds timeout);
  void Main();
  Status Begin();
  Status WaitUntilReady();
  void End(Status status);

  const GpuCommunicator communicator_;
  const std::vector<const cuda::Gpu*> gpus_;
  const nccl::ncclUniqueId id_;
  const std::string library_;
  const std::chrono::milliseconds timeout_;
  // Written by the thread before it is quiet.
  const nccl::Nccl* nccl_ = nullptr;
  std::vector<std::unique_ptr<NcclCommunicator>> communicators_;
  bool begun_ = false;  // NCCL connects some or all of them

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kNew;
  Status error_;
  bool stop_ = false;
  bool aborted_ = false;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_NCCL_COMMUNICATOR_PART_H_
