// FakeProcess: the state of the fake driver in one process. Call: with it each
// driver function begins.
//
// Purpose: the functions of the driver (calls/) contain only what is particular
// to them; their common checks are here.
//
//   CUresult cuMemFree_v2(CUdeviceptr address) {
//     return InContext("cuMemFree", InCapture::kUnsafe, [&](Call& call) {
//       ...
//     });
//   }
//
// Thread contract: mutex() guards all but the thread's own state; a Call holds
// it. Waiting releases it, so objects that were found before may be gone
// afterwards.
//
// Invariants: handles are numbers that are never used twice, so a stale one is
// an error and not a crash. The object is never destroyed: threads may use the
// driver until the process has ended. From exit() on, calls return
// CUDA_ERROR_DEINITIALIZED; in a child after fork(),
// CUDA_ERROR_NOT_INITIALIZED.
#ifndef MAYPOLE_TESTS_GPU_FAKE_PROCESS_H_
#define MAYPOLE_TESTS_GPU_FAKE_PROCESS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "common/gpu/cuda_types.h"
#include "tests/gpu/fake/config.h"
#include "tests/gpu/fake/memory.h"
#include "tests/gpu/fake/shared_state.h"
#include "tests/gpu/fake/stream.h"

namespace maypole::cuda::fake {

// In CUDA, but not in what Maypole uses.
inline constexpr auto kCaptureMerge = static_cast<CUresult>(903);
inline constexpr auto kCaptureIsolation = static_cast<CUresult>(905);
inline constexpr auto kCapturedEvent = static_cast<CUresult>(907);
inline constexpr auto kCaptureWrongThread = static_cast<CUresult>(908);
inline constexpr auto kIllegalState = static_cast<CUresult>(401);

// The primary context of a device.
struct FakeContext {
  FakeContext(std::mutex& mutex, std::condition_variable& changed, int device,
              int gpu, const FakeConfig& config);

  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }

  const int device;  // the process's number
  const int gpu;     // the machine's number
  int retained = 0;
  Engine engine;
  const std::shared_ptr<Stream> legacy;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread = {};
};

// What a thread has made current, and how its calls get on with captures.
struct FakeThread {
  static FakeThread& Get();
  std::vector<FakeContext*> contexts = {};  // the last one is current
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

class FakeProcess {
 public:
  using Held = std::unique_lock<std::mutex>;
  struct Shareable {
    std::shared_ptr<Backing> backing;
    bool can_export;
  };

  static FakeProcess& Get();

  CUresult Initialise();
  CUresult CheckInitialised() const;
  const FakeConfig& config() const { return config_; }
  std::mutex& mutex() { return mutex_; }

  // The functions below need the mutex locked.

  // What $MAYPOLE_FAKE_CUDA's fail= says about this call of the function.
  CUresult InjectedFailure(const char* name);

  FakeContext* Device(CUdevice device);    // null if there is none
  FakeContext* Context(CUcontext handle);  // null if there is none
  size_t device_count() const { return contexts_.size(); }
  int DeviceOfGpu(int gpu) const;  // -1 if it is not visible
  // Drops what belongs to the context, which must have no pending work.
  void Reset(FakeContext& context);

  // CUDA_ERROR_INVALID_HANDLE if the context has no such stream;
  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for the legacy one, if a capture forbids
  // its use.
  CUresult FindStream(FakeContext& context, CUstream handle,
                      std::shared_ptr<Stream>* stream);
  Event* FindEvent(CUevent handle);  // null if there is none

  // Both return CUDA_ERROR_DEINITIALIZED if the process ends meanwhile.
  CUresult Wait(std::shared_ptr<Operation> operation, Held& held);
  CUresult WaitForAll(Held& held);
  bool PendingUse(const Range& range) const;

  void AddCapture(std::shared_ptr<Capture> capture);
  // No stream captures for it any longer.
  void EndCapture(const std::shared_ptr<Capture>& capture);
  // Whether this thread may now do what disturbs a capture; if not, the capture
  // is invalidated.
  CUresult CheckCaptures();

  template <typename Handle>
  Handle NewHandle() {
    return (Handle)(next_handle_ += 0x10);  // a pointer or an integer
  }

  SharedState& state() { return state_; }
  FakeMemory& memory() { return memory_; }

  std::map<CUstream, std::shared_ptr<Stream>> streams;
  std::map<CUevent, Event> events;
  std::map<CUmemGenericAllocationHandle, Shareable> shareables;
  std::set<CUmodule> modules;

 private:
  FakeProcess();
  void Stop();

  const FakeConfig config_;
  std::mutex mutex_;
  std::condition_variable changed_;
  SharedState state_;
  FakeMemory memory_;
  std::vector<std::unique_ptr<FakeContext>> contexts_;
  std::vector<std::shared_ptr<Capture>> captures_;  // that have not ended
  std::map<std::string, uint64_t> calls_;  // of functions that are to fail
  uintptr_t next_handle_ = 0x10000;
  std::atomic<pid_t> process_ = 0;  // that has initialised; 0: none has
  std::atomic<bool> stopping_ = false;
};

struct Call {
  FakeProcess& process;
  FakeContext& context;
  FakeProcess::Held& held;
};

// Whether a function may be called while a stream captures.
enum class InCapture { kAllowed, kUnsafe };

// Calls body(process, held) if the driver is initialised.
template <typename Body>
CUresult InProcess(const char* name, Body body) {
  FakeProcess& process = FakeProcess::Get();
  if (const CUresult error = process.CheckInitialised()) return error;
  FakeProcess::Held held(process.mutex());
  if (const CUresult error = process.InjectedFailure(name)) return error;
  return body(process, held);
}

// Calls body(call) if the thread has a current context.
template <typename Body>
CUresult InContext(const char* name, InCapture capture, Body body) {
  return InProcess(name, [&](FakeProcess& process, FakeProcess::Held& held) {
    const auto& contexts = FakeThread::Get().contexts;
    if (contexts.empty() || contexts.back()->retained == 0) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (capture == InCapture::kUnsafe) {
      if (const CUresult error = process.CheckCaptures()) return error;
    }
    Call call = {process, *contexts.back(), held};
    return body(call);
  });
}

// Calls body(call, stream) if the stream is one of the current context.
template <typename Body>
CUresult InStream(const char* name, CUstream handle, Body body) {
  return InContext(name, InCapture::kAllowed, [&](Call& call) {
    std::shared_ptr<Stream> stream;
    const CUresult error =
        call.process.FindStream(call.context, handle, &stream);
    if (error == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
      call.context.engine.BlockingCapture()->invalidated = true;
    }
    return error != CUDA_SUCCESS ? error : body(call, stream);
  });
}

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_PROCESS_H_
