// Finds the limit that caused "Resource temporarily unavailable" or "Cannot
// allocate memory": the kernel reports neither the limit's name nor its value.
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

// RLIMIT_AS; nullopt if unlimited.
std::optional<uint64_t> AddressSpaceLimit();

enum class Needs { kProcess, kThread, kMemory };

// Like ErrnoStatus(). For EAGAIN and ENOMEM the code is kResourceExhausted, and
// the text names the limit that the call has hit, if one can be found. Call it
// right after the failure, while the shortage still lasts.
Status ResourceStatus(int err, Needs needs, std::string_view what);

// --- The search, for tests ---------------------------------------------------

struct LimitFacts {
  std::optional<uint64_t> address_space;  // RLIMIT_AS
  bool memory_fits = true;  // 1 MiB, and a thread's stack, can be mapped
  std::optional<uint64_t> user_processes;  // RLIMIT_NPROC; nullopt for root
  // Reads a file of /proc or /sys/fs/cgroup; nullopt if it cannot be read.
  std::function<std::optional<std::string>(const std::string&)> read;
};

// Names the limit that explains the failure; "" if none does.
std::string LimitBehind(Needs needs, const LimitFacts& facts);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_RESOURCE_LIMITS_H_
