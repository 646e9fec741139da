// How many cores this process may use.
//
// Two things limit them: the affinity mask, and the CPU quota of the process's
// cgroup or of one above it (a container's --cpus, a batch system's limit). A
// process over its quota is stopped until the period ends, often for tens of
// milliseconds.
//
//   const uint32_t threads = UsableCores() / ranks_here;
//
// Thread contract: pure functions, except AffinityCores() (the calling
// thread's mask), UsableCores(), and what ReadFilesUnder() returns (it reads
// files).
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

// A file's content by its absolute path; nothing if it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string&)>;

// Reads below `root` ("/" except in tests).
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

// As sched_getaffinity of the calling thread: fills a mask of so many bytes,
// and returns 0, or -1 with errno set (EINVAL: the kernel's mask is longer).
using GetAffinity = std::function<int(size_t bytes, cpu_set_t* mask)>;

// Cores of the calling thread's affinity mask, at least 1. The mask is as long
// as the kernel needs it: cpu_set_t ends at 1,024 processors.
uint32_t AffinityCores(const GetAffinity& get);
uint32_t AffinityCores();

// Cores that threads of one process can keep busy: those of the mask, or the
// quota, rounded up, if that is less; at least 1.
uint32_t UsableCores(uint32_t affinity, double quota);
uint32_t UsableCores();

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_CORES_H_
