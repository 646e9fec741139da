#include "common/program/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/system/fd.h"

namespace maypole {
namespace {

Status ReadAtMost(int fd, const std::string& what, size_t bytes,
                  std::string* out) {
  out->clear();
  char buffer[512];
  while (out->size() <= bytes) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, what);
    if (n == 0) break;
    out->append(buffer, static_cast<size_t>(n));
  }
  return Status();
}

Status CheckFile(const struct stat& info, const std::string& what,
                 const std::string& path) {
  if (!S_ISREG(info.st_mode)) {
    return Status(Code::kInvalidArgument,
                  what + ": must be a regular file with one line of text");
  }
  if (info.st_uid != 0 && info.st_uid != ::geteuid()) {
    return Status(Code::kPermissionDenied,
                  what + ": belongs to uid " + std::to_string(info.st_uid) +
                      ", who can read the secret and change it; it must "
                      "belong to root or to this program's user (uid " +
                      std::to_string(::geteuid()) + ")");
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Status(
        Code::kPermissionDenied,
        what + ": others than its owner may use it; chmod 600 " + path);
  }
  return Status();
}

}  // namespace

std::string SecretWarning(const std::string& secret) {
  if (secret.empty() || secret.size() >= kGoodSecretBytes) return "";
  return "the secret has " + std::to_string(secret.size()) +
         " characters and could be guessed; a good one has at least " +
         std::to_string(kGoodSecretBytes) +
         ", and is random (`openssl rand -hex 32` prints one)";
}

Status ReadSecretFile(const std::string& path, std::string* out) {
  const std::string what = "secret file " + path;
  // O_NONBLOCK: open() of a FIFO would wait for a process that writes to it.
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(errno, what);
  }
  if (Status s = CheckFile(info, what, path); !s.ok()) return s;
  std::string text;
  if (Status s = ReadAtMost(fd.get(), what, kMaxSecretBytes, &text); !s.ok()) {
    return s;
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) {
    text.pop_back();
  }
  const bool printable = std::all_of(
      text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f; });
  if (text.empty() || text.size() > kMaxSecretBytes || !printable) {
    return Status(Code::kInvalidArgument, what +
                                              ": must hold one line of 1 to " +
                                              std::to_string(kMaxSecretBytes) +
                                              " printable ASCII characters");
  }
  *out = std::move(text);
  return Status();
}

}  // namespace maypole
