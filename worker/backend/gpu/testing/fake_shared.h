// Helpers for memory that the fake's processes share: memfds, which other
// processes open through /proc, and memory ordering.
//
// Thread contract: any thread.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_SHARED_H_
#define MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_SHARED_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/system/fd.h"

namespace maypole::gpu {

// Makes a zeroed memfd whose size is sealed, so that its users get no SIGBUS.
absl::StatusOr<Fd> MakeSharedFile(const char* name, uint64_t bytes);
// Maps its first `bytes` bytes, shared, for reading and writing.
absl::StatusOr<Mapping> MapShared(int fd, uint64_t bytes);
// Returns true if MakeSharedFile has made it, with this size.
bool IsSharedFile(int fd, uint64_t bytes);

// The path by which other processes of this user open a descriptor of this one.
std::string PathOfFd(int fd);
absl::StatusOr<Fd> OpenFdOf(pid_t pid, int fd);

// Returns a random number, never 0, that identifies an object.
uint64_t RandomNumber();

// Call it before writing a value that others wait for, and after seeing such a
// value; it orders all such pairs of a process. The hardware would not need
// this, but a flag may be mapped at several addresses (several fake processes
// in one real one), which a race detector does not know.
void OrderSharedMemory();

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_SHARED_H_
