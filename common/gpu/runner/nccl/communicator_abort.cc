#include "common/gpu/runner/nccl/communicator_abort.h"

#include <sys/prctl.h>

#include <thread>

#include "common/gpu/gpu.h"
#include "common/gpu/nccl/nccl.h"
#include "common/system/thread.h"

namespace maypole {

std::shared_ptr<CommunicatorAbort> CommunicatorAbort::Begin(Parts parts) {
  std::shared_ptr<CommunicatorAbort> abort(
      new CommunicatorAbort(std::move(parts)));
  std::thread thread;
  // Without a thread the abort is never done, as if NCCL did not return.
  if (StartThread([abort] { abort->Main(); }, &thread).ok()) thread.detach();
  return abort;
}

void CommunicatorAbort::Main() {
  prctl(PR_SET_NAME, "maypole-abort");
  for (const auto& part : parts_) part->StopConnecting();
  const CommunicatorPart* any = nullptr;
  std::vector<nccl::ncclComm_t> handles;
  for (const auto& part : parts_) {
    part->WaitUntilQuiet();
    for (const nccl::ncclComm_t handle : part->Handles()) {
      any = part.get();
      handles.push_back(handle);
    }
  }
  if (any != nullptr) {
    const nccl::Nccl& nccl = any->nccl();
    const cuda::CurrentGpu current(any->at(0).gpu());
    // Whatever these calls return, nothing uses the communicators any more.
    nccl.ncclGroupStart();
    for (const nccl::ncclComm_t handle : handles) nccl.ncclCommAbort(handle);
    nccl.ncclGroupEnd();
  }
  for (const auto& part : parts_) part->NoteAborted();
  done_.store(true, std::memory_order_release);
}

}  // namespace maypole
