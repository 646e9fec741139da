// GpuRunner: the GPUs of one epoch and the thread that drives them.
//
// Purpose: implements EpochGpus with the CUDA driver and NCCL. The thread is
// started, and the driver opened, by the first Open(): a job without GPUs has
// neither. NCCL is loaded by the first MakeCommunicatorId(), or when the first
// communicator connects.
//
//   Open()      finds the GPU by its UUID, maps the memory (or allocates it),
//               has the GPU write the proof there          -> on_opened
//   Connect()   notes a communicator. It is connected when its first run is the
//               next, and no collective runs on the GPUs of this node
//   Run()       kernels on the GPUs' streams, and NCCL if there is a
//               communicator, and an event after them;
//               when the event is done                     -> on_ended
//   Close()     the memory is unmapped when the work on it has ended
//   Abort()     NCCL's communicators are aborted; runs end within a time limit
//
// The thread never waits for a GPU but queries it: it spins briefly, then naps
// between queries; it sleeps while nothing runs.
//
// Thread contract: one thread calls the methods, none of which waits for the
// GPU or the driver. The callbacks come from the runner's thread (or from
// within a method, if the thread cannot be started); they must return at once,
// and not destroy the object.
//
// Invariants: callbacks of one GPU's runs come in the order of Run(), except
// that one that cannot be launched is reported at once. No callback begins
// after the destructor has begun, except on_abort_stuck, which may come until
// it returns. The destructor waits at most kMostWait for the GPUs. If work
// remains then, the thread alone waits for it, even after the object is gone,
// so memory that a GPU may still use stays mapped.
#ifndef MAYPOLE_COMMON_GPU_RUNNER_GPU_RUNNER_H_
#define MAYPOLE_COMMON_GPU_RUNNER_GPU_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <variant>

#include "common/gpu/runner/epoch_gpus.h"
#include "common/gpu/runner/gpu_run.h"
#include "common/gpu/runner/nccl/communicators.h"
#include "common/status.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"

namespace maypole {

class GpuRunner : public EpochGpus {
 public:
  static constexpr std::chrono::milliseconds kMostWait{1000};

  // `nccl_library` is the file of NCCL; if it is empty, the dynamic linker
  // looks for libnccl.so.2.
  explicit GpuRunner(Callbacks callbacks, std::string nccl_library = "",
                     NcclTimeouts timeouts = {});
  ~GpuRunner() override;

  void Open(GpuMemoryId id, const session::GpuMemoryRequest& request,
            Fd memory) override;
  // Memory of this process on the GPU may be named by its addresses, as memory
  // with the number 0. on_opened({0, 0}, ...) says which number the GPU has.
  void OpenOwn(const uint8_t (&uuid)[16]);
  void Close(uint32_t local) override;
  void MakeCommunicatorId(uint32_t number) override;
  void Connect(GpuCommunicator communicator, std::string id) override;
  void Run(GpuRun run) override;
  void Abort() override;

 private:
  // These wait while a GPU is full.
  struct OpenCommand {
    GpuMemoryId id;
    session::GpuMemoryRequest request;
    Fd descriptor;
  };
  struct OpenOwnCommand {
    uint8_t uuid[16];
  };
  struct CloseCommand {
    uint32_t local;
  };
  using Command =
      std::variant<OpenCommand, OpenOwnCommand, CloseCommand, GpuRun>;
  // These never wait: another node may need them before the GPUs here can
  // continue.
  struct MakeIdCommand {
    uint32_t number;
  };
  struct ConnectCommand {
    GpuCommunicator communicator;
    std::string id;
  };
  struct AbortCommand {};
  using UrgentCommand =
      std::variant<MakeIdCommand, ConnectCommand, AbortCommand>;
  class Gate;
  class Thread;

  Status Start();
  template <typename C>
  void Post(C command);

  const std::shared_ptr<Gate> gate_;
  const std::shared_ptr<Thread> state_;  // shared with the thread
  std::thread thread_;
  bool aborted_ = false;
};

}  // namespace maypole

#endif  // MAYPOLE_COMMON_GPU_RUNNER_GPU_RUNNER_H_
