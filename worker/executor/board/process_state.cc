#include "worker/executor/board/process_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "common/system/fd.h"

namespace maypole::worker {

bool IsStopped(int pid) {
  if (pid <= 0) return false;
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return false;
  char text[512];
  const ssize_t n = read(fd.get(), text, sizeof(text));
  if (n <= 0) return false;
  // "77 (a name, with anything in it) T ..."
  const std::string_view stat(text, static_cast<size_t>(n));
  const size_t end = stat.rfind(')');
  if (end == std::string_view::npos || end + 2 >= stat.size()) return false;
  return stat[end + 2] == 'T' || stat[end + 2] == 't';
}

}  // namespace maypole::worker
