// SharedState: what the processes that use one set of fake GPUs share.
//
// Purpose: a process sees how much memory others use, and which process owns an
// exclusive GPU. What a process held is free again as soon as the process is
// dead, however it died.
//
//   SharedState state("/tmp/x");             // "": this process is alone
//   if (!state.Charge(0, bytes, limit)) ...  // no memory left on GPU 0
//   state.Charge(0, -bytes, limit);
//
// Thread contract: the caller serialises the calls.
//
// Invariants: the file DIR/memory is an array of rows, each of which names a
// process by its id and start time; it changes under flock(). An owner holds a
// record lock on a byte of DIR/owners, which the kernel drops at its death.
#ifndef MAYPOLE_TESTS_GPU_FAKE_SHARED_STATE_H_
#define MAYPOLE_TESTS_GPU_FAKE_SHARED_STATE_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "common/system/fd.h"

namespace maypole::cuda::fake {

class SharedState {
 public:
  explicit SharedState(const std::string& directory);

  // Adds `bytes` (possibly negative) to this process's use of the GPU; returns
  // false, and adds nothing, if all processes would then use more than `limit`.
  bool Charge(int gpu, int64_t bytes, uint64_t limit);
  // What all living processes use.
  uint64_t Used(int gpu);

  // Makes this process the owner of the GPU; false if another one is.
  bool Own(int gpu);
  void Disown(int gpu);

 private:
  uint64_t Update(int gpu, uint64_t mine);

  Fd memory_, owners_;            // invalid if this process is alone
  std::map<int, uint64_t> mine_;  // by GPU
};

// When the process started, in the kernel's ticks since boot; 0 if there is
// none with this id.
uint64_t ProcessStartTime(pid_t process);

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_SHARED_STATE_H_
