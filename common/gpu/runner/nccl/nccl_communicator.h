// NcclCommunicator: one GPU's place in a communicator (ncclComm_t).
//
// Purpose: connects without blocking, and says whether it is ready.
//
//   NcclCommunicator c(nccl, gpu, rank);
//   nccl->ncclGroupStart();
//   Status s = c.Connect(id, size);
//   nccl->ncclGroupEnd();
//   while (StatusOr<bool> ready = c.Ready(); ...) {}
//
// Thread contract: one thread at a time uses it. NCCL's threads write the
// handle.
//
// Invariants: the object does not move, because NCCL keeps the handle's
// address. The destructor releases nothing: ncclCommAbort() does, which may
// block forever and so has a thread of its own (communicator_abort.h).
#ifndef MAYPOLE_COMMON_GPU_RUNNER_NCCL_NCCL_COMMUNICATOR_H_
#define MAYPOLE_COMMON_GPU_RUNNER_NCCL_NCCL_COMMUNICATOR_H_

#include <string_view>

#include "common/gpu/gpu.h"
#include "common/gpu/nccl/nccl.h"
#include "common/status.h"
#include "common/status_or.h"

namespace maypole {

class NcclCommunicator {
 public:
  NcclCommunicator(const nccl::Nccl& nccl, const cuda::Gpu& gpu, int rank)
      : nccl_(nccl), gpu_(gpu), rank_(rank) {}
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Begins to connect; between ncclGroupStart() and ncclGroupEnd().
  Status Connect(const nccl::ncclUniqueId& id, int size);

  // True if NCCL has completed what was requested, false if not yet; or the
  // error that it has met, which is permanent.
  StatusOr<bool> Ready() const;

  // Null until NCCL has made it.
  nccl::ncclComm_t handle() const;
  const cuda::Gpu& gpu() const { return gpu_; }

  // The error of a call for this communicator: NCCL's text, and which GPU's it
  // is.
  Status Check(nccl::ncclResult_t result, std::string_view call) const;

 private:
  const nccl::Nccl& nccl_;
  const cuda::Gpu& gpu_;
  const int rank_;
  nccl::ncclConfig_t config_;
  nccl::ncclComm_t handle_ = nullptr;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_NCCL_NCCL_COMMUNICATOR_H_
