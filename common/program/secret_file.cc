#include "common/program/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/fd.h"

namespace maypole {
namespace {

absl::StatusOr<std::string> ReadAtMost(int fd, const std::string& path,
                                       size_t bytes) {
  std::string out;
  char buffer[512];
  while (out.size() <= bytes) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return ToAbsl(ErrnoStatus(errno, absl::StrCat("secret file ", path)));
    }
    if (n == 0) break;
    out.append(buffer, n);
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return ToAbsl(ErrnoStatus(errno, absl::StrCat("secret file ", path)));
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("secret file ", path,
                     ": others than its owner may use it; chmod 600 ", path));
  }
  absl::StatusOr<std::string> text =
      ReadAtMost(fd.get(), path, kMaxSecretBytes);
  if (!text.ok()) return text;
  while (!text->empty() && (text->back() == '\n' || text->back() == '\r')) {
    text->pop_back();
  }
  const bool printable = std::all_of(
      text->begin(), text->end(), [](char c) { return c >= ' ' && c < 0x7f; });
  if (text->empty() || text->size() > kMaxSecretBytes || !printable) {
    return absl::InvalidArgumentError(
        absl::StrCat("secret file ", path, ": must hold one line of 1 to ",
                     kMaxSecretBytes, " printable ASCII characters"));
  }
  return text;
}

}  // namespace maypole
