// How many cores this process may use.
//
// Two limits apply: the affinity mask, and the CPU quota of the process's
// cgroup or of one above it (a container's --cpus, a batch system's limit). The
// kernel stops a process that has used up its quota until the period ends,
// often for tens of milliseconds.
//
//   const uint32_t threads = UsableCores() / ranks_here;
//
// Thread contract: any thread. All are pure functions, except AffinityCores()
// (the calling thread's mask), UsableCores(), and the function that
// ReadFilesUnder() returns (it reads files).
#ifndef MAYPOLE_COMMON_SYSTEM_CORES_H_
#define MAYPOLE_COMMON_SYSTEM_CORES_H_

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace maypole {

// Returns a file's content, given its absolute path; nullopt if it cannot be
// read.
using ReadFile = std::function<std::optional<std::string>(const std::string&)>;

// Reads below `root` ("/" except in tests).
ReadFile ReadFilesUnder(std::string root);

// Infinity, which means that there is no quota.
double UnlimitedCores();

// The cores that a cgroup v2 `cpu.max` grants ("150000 100000\n" is 1.5 cores,
// "max 100000\n" is no limit), and those of v1's cpu.cfs_quota_us and
// cpu.cfs_period_us (-1 is no limit). A text of another form counts as no
// limit.
double QuotaV2(std::string_view cpu_max);
double QuotaV1(std::string_view quota_us, std::string_view period_us);

// The smallest quota of the process's cgroups (/proc/self/cgroup) and all
// cgroups above them. Assumes that the hierarchies are mounted in the usual
// places: /sys/fs/cgroup, /sys/fs/cgroup/unified, /sys/fs/cgroup/cpu. In a
// container /proc/self/cgroup may list the host's path; then the mount's root
// is the container's own cgroup, and its quota is found.
double CpuQuota(const ReadFile& read);

// Like sched_getaffinity for the calling thread: fills a mask of `bytes` bytes
// and returns 0, or -1 with errno set (EINVAL: the kernel's mask is longer).
using GetAffinity = std::function<int(size_t bytes, cpu_set_t* mask)>;

// The number of cores in the calling thread's affinity mask, at least 1. Uses a
// mask as long as the kernel needs: a cpu_set_t ends at 1,024 processors.
uint32_t AffinityCores(const GetAffinity& get);
uint32_t AffinityCores();

// How many cores the threads of one process can keep busy: those of the mask,
// or the quota, rounded up, if that is less; at least 1.
uint32_t UsableCores(uint32_t affinity, double quota);
uint32_t UsableCores();

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_CORES_H_
