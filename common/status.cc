#include "common/status.h"

#include <cerrno>
#include <cstring>

namespace maypole {

Status ErrnoStatus(int err, std::string_view what) {
  Code code = Code::kUnknown;
  switch (err) {
    case ENOENT:
    case ECONNREFUSED:
    case EPIPE:
    case ECONNRESET:
      code = Code::kUnavailable;
      break;
    case EACCES:
    case EPERM:
      code = Code::kPermissionDenied;
      break;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
      code = Code::kResourceExhausted;
      break;
    case ETIMEDOUT:
      code = Code::kDeadlineExceeded;
      break;
    default:
      break;
  }
  char buffer[128];
  // GNU strerror_r: thread safe, may or may not use the buffer.
  const char* text = strerror_r(err, buffer, sizeof(buffer));
  return Status(code, std::string(what) + ": " + text);
}

}  // namespace maypole
