#include "worker/backend/gpu/testing/fake_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"

namespace maypole::gpu {
namespace {

absl::Status Failed(const char* call) {
  return absl::InternalError(absl::StrCat(call, ": ", strerror(errno)));
}

}  // namespace

absl::StatusOr<Fd> MakeSharedFile(const char* name, uint64_t bytes) {
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Failed("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Failed("ftruncate");
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return Failed("F_ADD_SEALS");
  }
  return fd;
}

absl::StatusOr<Mapping> MapShared(int fd, uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Failed("mmap");
  return Mapping(data, bytes);
}

bool IsSharedFile(int fd, uint64_t bytes) {
  struct stat about = {};
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &about) == 0 &&
         static_cast<uint64_t>(about.st_size) == bytes;
}

std::string PathOfFd(int fd) {
  return absl::StrCat("/proc/", getpid(), "/fd/", fd);
}

absl::StatusOr<Fd> OpenFdOf(pid_t pid, int fd) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  Fd out(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!out.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot open ", path, ": ", strerror(errno)));
  }
  return out;
}

uint64_t RandomNumber() {
  uint64_t number = 0;
  while (number == 0) {
    if (getrandom(&number, sizeof(number), 0) != sizeof(number)) number = 0;
  }
  return number;
}

void OrderSharedMemory() {
  static std::atomic<uint64_t> order = 0;
  order.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace maypole::gpu
