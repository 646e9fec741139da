// What the fake's processes share memory with: memfds, found by their path in
// /proc; and the order of what is seen through them.
//
// Thread contract: pure functions, or one atomic.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_SHARED_H_
#define MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_SHARED_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/system/fd.h"

namespace maypole::gpu {

// A memfd of zeros whose size is sealed: whoever maps it gets no SIGBUS.
absl::StatusOr<Fd> MakeSharedFile(const char* name, uint64_t bytes);
// Its first `bytes`, shared, to be read and written.
absl::StatusOr<Mapping> MapShared(int fd, uint64_t bytes);
// True: made by MakeSharedFile, and of this size.
bool IsSharedFile(int fd, uint64_t bytes);

// By which other processes of this user open a descriptor of this process.
std::string PathOfFd(int fd);
absl::StatusOr<Fd> OpenFdOf(pid_t pid, int fd);

// Never 0; for what is to be told from everything else.
uint64_t RandomNumber();

// Called before what others wait for is written, and after it was seen: orders
// all such pairs of a process. The hardware needs no more than the flag itself;
// but one flag may be mapped at several addresses (several fake processes in
// one), and a race detector knows nothing of that.
void OrderSharedMemory();

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_SHARED_H_
