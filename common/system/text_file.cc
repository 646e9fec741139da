#include "common/system/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "common/system/fd.h"

namespace maypole {

Status ReadTextFile(const std::string& path, std::string* out) {
  out->clear();
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, path);
  char buffer[64 * 1024];
  while (true) {
    const ssize_t n = read(file.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    if (n == 0) break;
    out->append(buffer, static_cast<size_t>(n));
    if (out->size() > kMaxTextFileBytes) {
      return Status(Code::kInvalidArgument,
                    path + ": longer than " +
                        std::to_string(kMaxTextFileBytes >> 20) +
                        " MiB: this is not such a file");
    }
  }
  if (out->starts_with("\xff\xfe") || out->starts_with("\xfe\xff")) {
    return Status(Code::kInvalidArgument,
                  path + ": is UTF-16 text: save it as UTF-8");
  }
  if (out->starts_with("\xef\xbb\xbf")) out->erase(0, 3);
  return Status();
}

}  // namespace maypole
