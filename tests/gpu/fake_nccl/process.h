// Process: the state of the fake NCCL in one process.
//
// Purpose: the configuration, the communicators by their handles, and the text
// of the last error.
//
//   Process& process = Process::Get();
//   if (ncclResult_t error = process.Failure("ncclAllReduce", &later)) ...
//   std::shared_ptr<Communicator> comm = process.Find(handle);
//
// Thread contract: any thread may call the functions.
//
// Invariants: the object is never destroyed. A handle is never used twice, so a
// stale one is noticed. At exit(), all waits for other ranks end.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_PROCESS_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_PROCESS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "tests/gpu/fake_nccl/config.h"
#include "tests/gpu/fake_nccl/nccl_api.h"

namespace maypole::nccl::fake {

class Communicator;

class Process {
 public:
  static Process& Get();

  const Config& config() const { return config_; }

  // From now on, exit() ends what waits for other ranks. To be called when the
  // driver has been initialised, so that this happens before the driver waits
  // for its streams.
  void StopAtExit();

  // Counts the call. What fail= and fail_later= say about it; `later` says
  // which.
  ncclResult_t Failure(const char* name, bool* later);
  uint64_t CallsOf(const char* name);  // so far

  ncclComm_t Add(std::shared_ptr<Communicator> comm);
  // A handle that does not exist ends the process.
  std::shared_ptr<Communicator> Find(ncclComm_t handle);
  void Remove(ncclComm_t handle);

  // Held by the hub while it tells the ranks that calls do not match, so that
  // none of this process ends it before.
  std::mutex& mismatch_mutex() { return mismatch_mutex_; }

  // Returns `result`.
  ncclResult_t Error(ncclResult_t result, const std::string& text);
  const char* last_error() const { return last_error_; }

 private:
  Process();
  void Stop();

  const Config config_;
  std::mutex mismatch_mutex_;
  std::mutex mutex_;  // guards all below
  std::map<uintptr_t, std::shared_ptr<Communicator>> communicators_;
  uintptr_t next_handle_ = 0x100000;
  std::map<std::string, uint64_t> calls_;
  std::set<std::string> errors_;  // their texts stay
  std::atomic<const char*> last_error_ = "";
};

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_PROCESS_H_
