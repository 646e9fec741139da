// FakeLedger: the state that all processes of a fake machine share: its devices
// and which process maps which of their memory.
//
// Purpose: computes MemoryRoom although processes come and go, even by kill -9.
// The state is a page in a memfd of the process that has made the machine; the
// others open it through /proc.
//
// Thread contract: any thread of any process; a robust mutex in the page guards
// it.
//
// Invariants: memory counts as taken while a living process holds it, and only
// once however many hold it. A process lives from BeginProcess to EndProcess or
// to the end of its real process (a zombie counts as ended). A hold whose
// `process` is 0 is free; `process` is written last, so that a process that
// dies while it writes a hold leaves it free.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_LEDGER_H_
#define MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_LEDGER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "worker/backend/gpu/gpu.h"

namespace maypole::gpu {

class FakeLedger {
 public:
  static absl::StatusOr<std::unique_ptr<FakeLedger>> Create(
      const std::vector<DeviceInfo>& devices);
  // `path` is the path() of another FakeLedger of this machine.
  static absl::StatusOr<std::unique_ptr<FakeLedger>> Open(
      const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<DeviceInfo>& devices() const { return devices_; }
  // A number that no other machine has.
  uint64_t machine() const { return machine_; }

  // Numbers of processes and of memory are never reused.
  absl::StatusOr<uint64_t> BeginProcess();
  void EndProcess(uint64_t process);

  // Allocates memory that the process holds. Returns kResourceExhausted if
  // there is no room.
  absl::StatusOr<uint64_t> Take(uint64_t process, int device, uint64_t bytes);
  // Adds a holder of existing memory; Drop undoes one Take or Hold.
  absl::Status Hold(uint64_t process, uint64_t memory, int device,
                    uint64_t bytes);
  void Drop(uint64_t process, uint64_t memory);
  uint64_t Taken(int device);

 private:
  struct Page;
  class Lock;
  FakeLedger(Fd fd, Mapping mapping, std::string path);
  void Prune();
  uint64_t TakenLocked(int device) const;
  absl::Status Write(uint64_t process, uint64_t memory, int device,
                     uint64_t bytes);

  const Fd fd_;  // keeps path() alive, in the process that made the machine
  const Mapping mapping_;
  Page* const page_;
  const std::string path_;
  uint64_t machine_ = 0;
  std::vector<DeviceInfo> devices_;
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_LEDGER_H_
