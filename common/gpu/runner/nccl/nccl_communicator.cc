#include "common/gpu/runner/nccl/nccl_communicator.h"

namespace maypole {

Status NcclCommunicator::Connect(const nccl::ncclUniqueId& id, int size) {
  const cuda::CurrentGpu current(gpu_);
  if (const Status s = current.status(); !s.ok()) return s;
  config_.blocking = 0;
  return Check(
      nccl_.ncclCommInitRankConfig(&handle_, size, id, rank_, &config_),
      "ncclCommInitRankConfig");
}

nccl::ncclComm_t NcclCommunicator::handle() const {
  return __atomic_load_n(&handle_, __ATOMIC_ACQUIRE);
}

StatusOr<bool> NcclCommunicator::Ready() const {
  const nccl::ncclComm_t comm = handle();
  if (comm == nullptr) return false;
  nccl::ncclResult_t state = nccl::ncclSuccess;
  Status s =
      Check(nccl_.ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
  if (s.ok()) s = Check(state, "NCCL");
  if (!s.ok()) return s;
  return state == nccl::ncclSuccess;
}

Status NcclCommunicator::Check(nccl::ncclResult_t result,
                               std::string_view call) const {
  const Status s = nccl::NcclStatus(nccl_, result, call);
  if (s.ok()) return {};
  return Status(s.code(), s.message() + ", NCCL rank " + std::to_string(rank_) +
                              " on " + gpu_.uuid());
}

}  // namespace maypole
