#include "common/system/resource_limits.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>

namespace maypole {
namespace {

constexpr char kCgroups[] = "/sys/fs/cgroup";

std::optional<uint64_t> LimitOf(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  return limit.rlim_cur;
}

uint64_t StackBytes() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (pthread_attr_init(&attributes) != 0) return 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

bool Fits(uint64_t bytes) {
  void* const p = mmap(nullptr, bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  munmap(p, bytes);
  return true;
}

std::optional<std::string> ReadSystemFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::optional<uint64_t> Number(const std::optional<std::string>& text) {
  uint64_t n = 0;
  if (!text.has_value() ||
      std::from_chars(text->data(), text->data() + text->size(), n).ec !=
          std::errc()) {
    return std::nullopt;  // also "max"
  }
  return n;
}

// The path in the first line of /proc/self/cgroup that lists exactly these
// controllers.
std::string CgroupPath(const std::string& lines, std::string_view controllers) {
  const std::string sign = ":" + std::string(controllers) + ":";
  const size_t at = lines.find(sign);
  if (at == std::string::npos) return "";
  const size_t begin = at + sign.size();
  return lines.substr(begin, lines.find('\n', begin) - begin);
}

// Describes the pids.max of the process's cgroup, or of one above it, if it is
// reached.
std::string FullCgroup(const LimitFacts& facts) {
  const std::string lines = facts.read("/proc/self/cgroup").value_or("");
  for (const auto& [mount, path] :
       {std::pair(std::string(kCgroups), CgroupPath(lines, "")),
        std::pair(std::string(kCgroups) + "/pids",
                  CgroupPath(lines, "pids"))}) {
    for (std::string at = path;; at.resize(at.rfind('/'))) {
      const std::string directory = mount + (at == "/" ? "" : at);
      const auto limit = Number(facts.read(directory + "/pids.max"));
      const auto used = Number(facts.read(directory + "/pids.current"));
      if (limit.has_value() && used.has_value() && *used >= *limit) {
        return "the limit of processes and threads of the cgroup (" +
               directory + "/pids.max) is " + std::to_string(*limit);
      }
      if (at.empty() || at[0] != '/') break;
    }
  }
  return "";
}

// Describes the kernel's limit of threads if it is (nearly) reached.
// /proc/loadavg is "0.10 0.20 0.30 2/345 6789" for 345 threads.
std::string FullSystem(const LimitFacts& facts) {
  const std::string load = facts.read("/proc/loadavg").value_or("");
  const size_t slash = load.find('/');
  if (slash == std::string::npos) return "";
  const auto threads = Number(load.substr(slash + 1));
  for (const char* name : {"threads-max", "pid_max"}) {
    const std::string path = std::string("/proc/sys/kernel/") + name;
    const auto limit = Number(facts.read(path));
    // The kernel does not reuse the lowest 300 process ids.
    if (threads.has_value() && limit.has_value() && *threads + 300 >= *limit) {
      return "the machine's limit of processes and threads (" + path + ") is " +
             std::to_string(*limit);
    }
  }
  return "";
}

std::string FullAddressSpace(const LimitFacts& facts) {
  if (facts.memory_fits || !facts.address_space.has_value()) return "";
  return "the limit of this process's address space is " +
         std::to_string(*facts.address_space) + " bytes (ulimit -v)";
}

}  // namespace

std::optional<uint64_t> AddressSpaceLimit() { return LimitOf(RLIMIT_AS); }

std::string LimitBehind(Needs needs, const LimitFacts& facts) {
  std::string limit = FullAddressSpace(facts);
  if (!limit.empty() || needs == Needs::kMemory) return limit;
  limit = FullCgroup(facts);
  if (limit.empty()) limit = FullSystem(facts);
  // The remaining explanation. The kernel does not show how many processes and
  // threads the user has.
  if (limit.empty() && facts.user_processes.has_value()) {
    limit = "the limit of processes and threads of this user is " +
            std::to_string(*facts.user_processes) + " (ulimit -u)";
  }
  return limit;
}

Status ResourceStatus(int err, Needs needs, std::string_view what) {
  const Status plain = ErrnoStatus(err, what);
  if (err != EAGAIN && err != ENOMEM) return plain;
  LimitFacts facts;
  facts.address_space = AddressSpaceLimit();
  const uint64_t stack = needs == Needs::kThread ? StackBytes() : 0;
  // If the failed call needed memory, we know already that it does not fit.
  facts.memory_fits = needs != Needs::kMemory && Fits(stack + (1 << 20));
  if (geteuid() != 0) facts.user_processes = LimitOf(RLIMIT_NPROC);
  facts.read = ReadSystemFile;
  const std::string limit = LimitBehind(needs, facts);
  return Status(Code::kResourceExhausted,
                plain.message() + (limit.empty() ? "" : ": " + limit));
}

}  // namespace maypole
