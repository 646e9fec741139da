#include "common/system/memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace maypole {
namespace {

constexpr uint64_t kPartBytes = 1 << 20;  // about 0.3 ms

}  // namespace

uint64_t PageBytes() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

Status ReservePages(int fd, uint64_t begin, uint64_t end) {
  while (begin < end) {
    const uint64_t part = std::min(kPartBytes, end - begin);
    const int err = posix_fallocate(fd, static_cast<off_t>(begin),
                                    static_cast<off_t>(part));
    if (err == EINTR) continue;
    if (err != 0) return ErrnoStatus(err, "no shared memory");
    begin += part;
  }
  return Status();
}

}  // namespace maypole
