// Which limit stands behind "Resource temporarily unavailable" and "Cannot
// allocate memory": the kernel tells neither its name nor its value.
//
//   if (pid < 0) return ResourceStatus(errno, Needs::kProcess, "fork");
//   // fork: Resource temporarily unavailable: the limit of processes and
//   // threads of this user is 512 (ulimit -u)
//
// Thread contract: all functions may be called by any thread.
#ifndef MAYPOLE_COMMON_SYSTEM_RESOURCE_LIMITS_H_
#define MAYPOLE_COMMON_SYSTEM_RESOURCE_LIMITS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace maypole {

// RLIMIT_AS; none: unlimited.
std::optional<uint64_t> AddressSpaceLimit();

enum class Needs { kProcess, kThread, kMemory };

// ErrnoStatus(), and for EAGAIN and ENOMEM the limit that the call has hit, if
// one can be found. kResourceExhausted for both. To be called right after the
// failure, when what was short still is.
Status ResourceStatus(int err, Needs needs, std::string_view what);

// --- The search, for tests ---------------------------------------------------

struct LimitFacts {
  std::optional<uint64_t> address_space;  // RLIMIT_AS
  bool memory_fits = true;  // a thread's stack, or a little memory
  std::optional<uint64_t> user_processes;  // RLIMIT_NPROC; none for root
  // The content of a file of /proc or /sys/fs/cgroup; nothing if it cannot be
  // read.
  std::function<std::optional<std::string>(const std::string&)> read;
};

// "" if none explains it.
std::string LimitBehind(Needs needs, const LimitFacts& facts);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_RESOURCE_LIMITS_H_
