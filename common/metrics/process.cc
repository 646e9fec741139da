#include "common/metrics/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <memory>
#include <string>

#include "common/metrics/families.h"
#include "common/system/fd.h"

namespace maypole {
namespace {

std::string ReadFile(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char part[4096];
  ssize_t n = 0;
  while (fd.valid() && (n = read(fd.get(), part, sizeof(part))) > 0) {
    text.append(part, static_cast<size_t>(n));
  }
  return text;
}

// The number that follows `what` in `text`; nullopt if there is none.
std::optional<uint64_t> NumberAfter(std::string_view text,
                                    std::string_view what) {
  const size_t at = text.find(what);
  if (at == std::string_view::npos) return std::nullopt;
  uint64_t value = 0;
  const char* begin = text.data() + at + what.size();
  if (std::from_chars(begin, text.data() + text.size(), value).ec !=
      std::errc()) {
    return std::nullopt;
  }
  return value;
}

std::optional<uint64_t> OpenDescriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir("/proc/self/fd"),
                                                closedir);
  if (dir == nullptr) return std::nullopt;
  uint64_t n = 0;
  while (readdir(dir.get()) != nullptr) ++n;
  return n - 3;  // ".", "..", and the directory itself
}

}  // namespace

// "77 (a name, with anything in it) S 1 77 ...": utime is the 14th field.
std::optional<ProcessUse> ParseProcessStat(std::string_view text,
                                           uint64_t ticks_per_second,
                                           uint64_t page_bytes) {
  const size_t end = text.rfind(") ");
  if (end == std::string_view::npos) return std::nullopt;
  constexpr size_t kFirst = 3;  // the state
  constexpr size_t kUser = 14, kSystem = 15, kStart = 22, kVirtual = 23,
                   kResident = 24;
  uint64_t fields[kResident + 1] = {};
  size_t at = end + 2;
  for (size_t field = kFirst; field <= kResident; ++field) {
    const size_t space = text.find(' ', at);
    if (space == std::string_view::npos) return std::nullopt;
    // The fields that we do not use may be negative, or a letter: they stay 0.
    std::from_chars(text.data() + at, text.data() + space, fields[field]);
    at = space + 1;
  }
  const auto ticks = static_cast<double>(ticks_per_second);
  ProcessUse use;
  use.cpu_seconds =
      static_cast<double>(fields[kUser] + fields[kSystem]) / ticks;
  use.started = static_cast<double>(fields[kStart]) / ticks;
  use.virtual_bytes = fields[kVirtual];
  use.resident_bytes = fields[kResident] * page_bytes;
  return use;
}

std::optional<ProcessUse> ReadProcessUse(pid_t pid) {
  return ParseProcessStat(ReadFile("/proc/" + std::to_string(pid) + "/stat"),
                          static_cast<uint64_t>(sysconf(_SC_CLK_TCK)),
                          static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
}

std::vector<prometheus::MetricFamily> ProcessMetrics::Collect() const {
  Families all;
  if (const auto use = ReadProcessUse(getpid())) {
    all.Counter("process_cpu_seconds_total",
                "User and system CPU time of the process.", {},
                use->cpu_seconds);
    all.Gauge("process_resident_memory_bytes",
              "Resident memory of the process.", {},
              static_cast<double>(use->resident_bytes));
    all.Gauge("process_virtual_memory_bytes", "Virtual memory of the process.",
              {}, static_cast<double>(use->virtual_bytes));
    if (const auto boot = NumberAfter(ReadFile("/proc/stat"), "\nbtime ")) {
      all.Gauge("process_start_time_seconds",
                "When the process started, in seconds since 1970.", {},
                static_cast<double>(*boot) + use->started);
    }
  }
  if (const auto open = OpenDescriptors()) {
    all.Gauge("process_open_fds", "Open file descriptors of the process.", {},
              static_cast<double>(*open));
  }
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    all.Gauge("process_max_fds", "How many descriptors the process may open.",
              {}, static_cast<double>(limit.rlim_cur));
  }
  return all.Take();
}

}  // namespace maypole
