// Communicators: the communicators of an epoch, by number.
//
//   Communicators communicators(library, timeouts);
//   StatusOr<std::string> id = communicators.MakeId();
//   communicators.Connect(communicator, gpus, *id);   // only notes it
//   communicators.Begin(number);                      // when GPUs are free
//   const auto found = communicators.Find(number);
//   communicators.Abort();  while (!communicators.gone()) ...
//
// Thread contract: one thread uses it; only MakeId() waits (for NCCL to be
// loaded).
//
// Why connecting does not begin at once: connecting, NCCL allocates and maps
// memory of the GPUs. The driver may make such a call wait for a kernel on the
// GPU; a kernel of NCCL's may wait for one of another GPU, which cannot be
// launched before the call returns (NCCL's issues 613, 787). So CollectiveRuns
// begins it when no collective runs on the GPUs of this node.
//
// Invariants: at most kMaxGpuCommunicators. They must be gone() when it is
// destroyed.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_NCCL_COMMUNICATORS_H_
#define MAYPOLE_COMMON_GPU_RUNNER_NCCL_COMMUNICATORS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/gpu/gpu.h"
#include "common/gpu/runner/gpu_run.h"
#include "common/gpu/runner/nccl/communicator_abort.h"
#include "common/gpu/runner/nccl/communicator_part.h"
#include "common/status.h"
#include "common/status_or.h"

namespace maypole {

inline constexpr std::chrono::milliseconds kConnectTimeout{60'000};
inline constexpr std::chrono::milliseconds kAbortTimeout{1'000};

// Tests have shorter ones.
struct NcclTimeouts {
  // From Begin() until a communicator is connected.
  std::chrono::milliseconds connect = kConnectTimeout;
  // From Abort() until NCCL has released the communicators and the GPUs have
  // ended their work.
  std::chrono::milliseconds abort = kAbortTimeout;
};

class Communicators {
 public:
  // `library`: see nccl::OpenNccl().
  Communicators(std::string library, NcclTimeouts timeouts);

  // NCCL's unique id.
  StatusOr<std::string> MakeId() const;
  // Notes a communicator to be connected. `gpus` are those of the communicator,
  // in its order. If it cannot be connected, Find() says why.
  void Connect(GpuCommunicator communicator, std::vector<const cuda::Gpu*> gpus,
               const std::string& id);

  // It was noted, but Begin() has not been called.
  bool IsNew(uint32_t number) const;
  // Begins to connect a new one.
  void Begin(uint32_t number);
  // The communicator, if it is connected; null if it is not yet; else why it
  // never will be.
  StatusOr<CommunicatorPart*> Find(uint32_t number) const;

  // Begins to release all; nothing may be connected or used afterwards.
  void Abort();
  // There is none, or all have been released.
  bool gone() const;

  const NcclTimeouts& timeouts() const { return timeouts_; }

 private:
  Status CheckConnect(const GpuCommunicator& communicator, size_t gpus,
                      const std::string& id) const;

  const std::string library_;
  const NcclTimeouts timeouts_;
  std::map<uint32_t, std::shared_ptr<CommunicatorPart>> parts_;
  std::map<uint32_t, Status> refused_;
  std::shared_ptr<CommunicatorAbort> abort_;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_NCCL_COMMUNICATORS_H_
