#include "worker/agent/sealed_tls.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "common/absl_status.h"

namespace maypole::worker {
namespace {

constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

// The texts, each preceded by its length.
void Append(const std::string& text, std::string* out) {
  const auto bytes = static_cast<uint32_t>(text.size());
  out->append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  *out += text;
}

bool Take(int fd, off_t* at, std::string* text) {
  uint32_t bytes = 0;
  if (pread(fd, &bytes, sizeof(bytes), *at) != sizeof(bytes) ||
      bytes > kMaxPemBytes) {
    return false;
  }
  text->resize(bytes);
  *at += static_cast<off_t>(sizeof(bytes));
  if (pread(fd, text->data(), bytes, *at) != static_cast<ssize_t>(bytes)) {
    return false;
  }
  *at += bytes;
  return true;
}

}  // namespace

absl::StatusOr<Fd> SealTls(const TlsOptions& options) {
  if (!options.enabled()) return Fd();
  std::string all;
  for (const std::string* text :
       {&options.ca, &options.cert, &options.key, &options.server_name}) {
    Append(*text, &all);
  }
  Fd fd(memfd_create("maypole-tls", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() ||
      write(fd.get(), all.data(), all.size()) !=
          static_cast<ssize_t>(all.size()) ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return ToAbsl(ErrnoStatus(errno, "cannot keep the TLS key in memory"));
  }
  return fd;
}

absl::StatusOr<TlsOptions> ReadSealedTls(Fd fd) {
  TlsOptions options;
  if (!fd.valid()) return options;
  off_t at = 0;
  for (std::string* text :
       {&options.ca, &options.cert, &options.key, &options.server_name}) {
    if (!Take(fd.get(), &at, text)) {
      return absl::InvalidArgumentError(
          "--tls_fd is internal: only maypole-worker may pass it");
    }
  }
  return options;
}

}  // namespace maypole::worker
