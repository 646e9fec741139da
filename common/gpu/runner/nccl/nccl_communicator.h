// NcclCommunicator: one GPU's place in a communicator (ncclComm_t).
//
// Purpose: begins to connect without blocking, and says how it is.
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
// address. The destructor gives nothing back: ncclCommAbort() does, which may
// block for ever and so has a thread of its own (communicator_abort.h).
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

  // True if NCCL has done what it was asked for, false if it has not yet; or
  // the error that it has met, which never goes away.
  StatusOr<bool> Ready() const;

  // Null until NCCL has made it.
  nccl::ncclComm_t handle() const;
  const cuda::Gpu& gpu() const { return gpu_; }

  // The error of a call for this communicator: NCCL's text, and whose it is.
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
