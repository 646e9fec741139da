#include "common/system/cores.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

namespace maypole {
namespace {

// Longer masks are not tried: then EINVAL has another cause.
constexpr size_t kMostProcessors = size_t{1} << 20;

struct FreeMask {
  void operator()(cpu_set_t* mask) const { CPU_FREE(mask); }
};

constexpr char kMount[] = "/sys/fs/cgroup";

// The number at the start of the text (a line end or blank may follow).
bool ReadNumber(std::string_view text, int64_t* out) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && (at == end || *at == '\n' || *at == ' ');
}

double Quota(int64_t quota_us, int64_t period_us) {
  if (quota_us <= 0 || period_us <= 0) return UnlimitedCores();
  return static_cast<double>(quota_us) / static_cast<double>(period_us);
}

// True if the comma-separated list has the word.
bool Lists(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

double QuotaOfDirectory(const ReadFile& read, const std::string& directory) {
  double quota = UnlimitedCores();
  if (const auto v2 = read(directory + "/cpu.max")) quota = QuotaV2(*v2);
  const auto v1 = read(directory + "/cpu.cfs_quota_us");
  if (!v1.has_value()) return quota;
  const auto period = read(directory + "/cpu.cfs_period_us");
  if (!period.has_value()) return quota;
  return std::min(quota, QuotaV1(*v1, *period));
}

// `path` begins with '/'; "/" is the root.
double QuotaUpwards(const ReadFile& read, const std::string& mount,
                    std::string path) {
  double quota = UnlimitedCores();
  while (path.size() > 1) {
    quota = std::min(quota, QuotaOfDirectory(read, mount + path));
    path.resize(path.rfind('/'));
  }
  return std::min(quota, QuotaOfDirectory(read, mount));
}

// A line of /proc/self/cgroup: "4:cpu,cpuacct:/batch/job7"; v2 lists no
// controllers: "0::/batch/job7".
double QuotaOfLine(const ReadFile& read, std::string_view line) {
  const size_t first = line.find(':');
  if (first == std::string_view::npos) return UnlimitedCores();
  const size_t second = line.find(':', first + 1);
  if (second == std::string_view::npos) return UnlimitedCores();
  const std::string_view list = line.substr(first + 1, second - first - 1);
  const std::string path(line.substr(second + 1));
  if (path.empty() || path[0] != '/') return UnlimitedCores();
  const std::string mount = kMount;
  if (list.empty()) {
    return std::min(QuotaUpwards(read, mount, path),
                    QuotaUpwards(read, mount + "/unified", path));
  }
  if (!Lists(list, "cpu")) return UnlimitedCores();
  return std::min(QuotaUpwards(read, mount + "/cpu", path),
                  QuotaUpwards(read, mount + "/" + std::string(list), path));
}

}  // namespace

ReadFile ReadFilesUnder(std::string root) {
  while (!root.empty() && root.back() == '/') root.pop_back();
  return [root = std::move(root)](
             const std::string& path) -> std::optional<std::string> {
    std::ifstream file(root + path);
    if (!file) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
}

double UnlimitedCores() { return std::numeric_limits<double>::infinity(); }

double QuotaV2(std::string_view cpu_max) {
  const size_t blank = cpu_max.find(' ');
  int64_t quota = 0;
  int64_t period = 0;
  if (blank == std::string_view::npos || !ReadNumber(cpu_max, &quota) ||
      !ReadNumber(cpu_max.substr(blank + 1), &period)) {
    return UnlimitedCores();
  }
  return Quota(quota, period);
}

double QuotaV1(std::string_view quota_us, std::string_view period_us) {
  int64_t quota = 0;
  int64_t period = 0;
  if (!ReadNumber(quota_us, &quota) || !ReadNumber(period_us, &period)) {
    return UnlimitedCores();
  }
  return Quota(quota, period);
}

double CpuQuota(const ReadFile& read) {
  double quota = UnlimitedCores();
  const auto cgroups = read("/proc/self/cgroup");
  if (!cgroups.has_value()) return quota;
  std::string_view rest = *cgroups;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    quota = std::min(quota, QuotaOfLine(read, rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return quota;
}

uint32_t AffinityCores(const GetAffinity& get) {
  for (size_t n = CPU_SETSIZE; n <= kMostProcessors; n *= 2) {
    const std::unique_ptr<cpu_set_t, FreeMask> mask(CPU_ALLOC(n));
    if (mask == nullptr) return 1;
    const size_t bytes = CPU_ALLOC_SIZE(n);
    CPU_ZERO_S(bytes, mask.get());
    if (get(bytes, mask.get()) == 0) {
      return std::max(1u,
                      static_cast<uint32_t>(CPU_COUNT_S(bytes, mask.get())));
    }
    if (errno != EINVAL) return 1;
  }
  return 1;
}

uint32_t AffinityCores() {
  return AffinityCores([](size_t bytes, cpu_set_t* mask) {
    return sched_getaffinity(0, bytes, mask);
  });
}

uint32_t UsableCores(uint32_t affinity, double quota) {
  if (quota >= affinity) return std::max(1u, affinity);
  return std::max(1u, static_cast<uint32_t>(std::ceil(quota)));
}

uint32_t UsableCores() {
  return UsableCores(AffinityCores(), CpuQuota(ReadFilesUnder("/")));
}

}  // namespace maypole
