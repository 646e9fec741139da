// FakeLedger: what the processes of a fake machine share: its devices, and who
// maps how much of their memory.
//
// Purpose: MemoryRoom of a machine whose processes come and go, also by
// kill -9. A page in a memfd of the process that made the machine; the others
// open it by its path in /proc.
//
// Thread contract: any thread of any process: a robust mutex in the page, held
// for a walk over it.
//
// Invariants: memory is taken while one living process holds it, and once,
// however many hold it. A process lives from BeginProcess to EndProcess, or the
// end of its real process (a zombie is dead: its memory is gone). A hold whose
// `process` is 0 is free; `process` is written last, so that whoever dies in
// the middle leaves a free one.
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
  // path: path() of another FakeLedger of this machine.
  static absl::StatusOr<std::unique_ptr<FakeLedger>> Open(
      const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<DeviceInfo>& devices() const { return devices_; }
  // A number that no other machine has.
  uint64_t machine() const { return machine_; }

  // Numbers of processes and of memory are never used again.
  absl::StatusOr<uint64_t> BeginProcess();
  void EndProcess(uint64_t process);

  // New memory, held by the process: kResourceExhausted if there is no room.
  absl::StatusOr<uint64_t> Take(uint64_t process, int device, uint64_t bytes);
  // One more holder of what was taken; Drop undoes one Take or Hold.
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
