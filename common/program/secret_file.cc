#include "common/program/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/system/fd.h"

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

absl::Status CheckFile(const struct stat& info, const std::string& path) {
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("secret file ", path,
                     ": must be a regular file with one line of text"));
  }
  if (info.st_uid != 0 && info.st_uid != ::geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "secret file ", path, ": belongs to uid ", info.st_uid,
        ", who can read the secret and change it; it must belong to root ",
        "or to this program's user (uid ", ::geteuid(), ")"));
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("secret file ", path,
                     ": others than its owner may use it; chmod 600 ", path));
  }
  return absl::OkStatus();
}

}  // namespace

std::string SecretWarning(const std::string& secret) {
  if (secret.empty() || secret.size() >= kGoodSecretBytes) return "";
  return absl::StrCat("the secret has ", secret.size(),
                      " characters and could be guessed; a good one has at "
                      "least ",
                      kGoodSecretBytes,
                      ", and is random (`openssl rand -hex 32` prints one)");
}

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  // O_NONBLOCK: open() of a FIFO would wait for a writer.
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return ToAbsl(ErrnoStatus(errno, absl::StrCat("secret file ", path)));
  }
  if (absl::Status s = CheckFile(info, path); !s.ok()) return s;
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
