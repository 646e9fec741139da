// How a rank that finds nothing to do should wait: by the cores that its
// process may really use.
//
// Two things limit them: the affinity mask, and the CPU quota of the process's
// cgroup or of one above it (a container's --cpus, a batch system's limit). A
// process over its quota is stopped until the period ends, often for tens of
// milliseconds, so looking again and again is paid for by the next computation.
//
//   const WaitPolicy w = ChooseWaitPolicy(AffinityCores(),
//                                   CpuQuota(ReadFilesUnder("/")), 2, 1);
//
// Thread contract: pure functions, but for AffinityCores() (the calling
// thread's) and what ReadFilesUnder() returns (reads files).
#ifndef MAYPOLE_CLIENT_CORES_H_
#define MAYPOLE_CLIENT_CORES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace maypole {

// A file's content by its absolute path; nothing if it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string&)>;

// Reads below `root` ("/" but in tests).
ReadFile ReadFilesUnder(std::string root);

// Infinity: no quota.
double UnlimitedCores();

// Cores of a cgroup v2 `cpu.max` ("150000 100000\n" is 1.5, "max 100000\n" no
// limit) and of v1's cpu.cfs_quota_us and cpu.cfs_period_us (-1: no limit).
// What cannot be read so is no limit.
double QuotaV2(std::string_view cpu_max);
double QuotaV1(std::string_view quota_us, std::string_view period_us);

// The smallest quota on the way from the process's cgroups (/proc/self/cgroup)
// up to their roots. The hierarchies are looked for where they are mounted by
// custom: /sys/fs/cgroup, /sys/fs/cgroup/unified, /sys/fs/cgroup/cpu. In a
// container the listed path may be the host's; then the mount's root is the
// container's own cgroup, and is the one that is found.
double CpuQuota(const ReadFile& read);

// Cores of the calling thread's affinity mask, at least 1.
uint32_t AffinityCores();

struct WaitPolicy {
  // Gives its core to others each time it looks.
  bool yields = false;
  // How long it looks again before it sleeps.
  std::chrono::microseconds spin{0};
};

WaitPolicy ChooseWaitPolicy(uint32_t affinity, double quota,
                            uint32_t local_size, uint32_t nodes);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_CORES_H_
