#include "client/launcher/process/function_files.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <vector>

#include "common/system/fd.h"

namespace maypole::launcher {
namespace {

constexpr size_t kPartBytes = 256 * 1024;

}  // namespace

Status AppendPrivately(const std::string& path, std::string_view bytes,
                       int flags) {
  flags |= O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  const Fd fd(open(path.c_str(), flags, 0600));
  while (fd.valid() && !bytes.empty()) {
    const ssize_t n = write(fd.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  if (fd.valid() && bytes.empty()) return Status();
  return ErrnoStatus(errno, "cannot write " + path);
}

Status ReadInParts(const std::string& path,
                   const std::function<void(std::string_view)>& take) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<char> part(kPartBytes);
  while (fd.valid()) {
    const ssize_t n = read(fd.get(), part.data(), part.size());
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) return Status();
    if (n < 0) break;
    take({part.data(), static_cast<size_t>(n)});
  }
  return ErrnoStatus(errno, "cannot read " + path);
}

Status WriteOutcome(const std::string& directory, const Outcome& outcome) {
  if (outcome.cause.empty()) return AppendPrivately(directory + "/outcome", "");
  return AppendPrivately(
      directory + "/outcome",
      std::to_string(outcome.rank) + "\n" + outcome.cause + "\n");
}

}  // namespace maypole::launcher
