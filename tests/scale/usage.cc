#include "tests/scale/usage.h"

#include <ctime>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace maypole::scale {

absl::StatusOr<double> CpuSeconds(pid_t pid) {
  clockid_t clock = 0;
  timespec time{};
  if (clock_getcpuclockid(pid, &clock) != 0 ||
      clock_gettime(clock, &time) != 0) {
    return absl::NotFoundError(absl::StrCat("no process ", pid));
  }
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) / 1e9;
}

absl::StatusOr<Memory> MemoryOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  Memory memory;
  std::string key;
  while (file >> key) {
    int64_t* value = nullptr;
    int64_t unit = 1024;
    if (key == "VmRSS:") value = &memory.resident_bytes;
    if (key == "VmHWM:") value = &memory.most_resident_bytes;
    if (key == "Threads:") {
      value = &memory.threads;
      unit = 1;
    }
    if (value != nullptr && file >> *value) *value *= unit;
    file.ignore(4096, '\n');
  }
  if (memory.threads == 0) {
    return absl::NotFoundError(absl::StrCat("no process ", pid));
  }
  return memory;
}

}  // namespace maypole::scale
