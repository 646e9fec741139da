// Process-wide settings that a daemon's main() makes first.
//
// Thread contract: call before any thread is started.
#ifndef MAYPOLE_COMMON_PROGRAM_PROCESS_H_
#define MAYPOLE_COMMON_PROGRAM_PROCESS_H_

namespace maypole {

// How log lines begin, as spdlog's pattern, unless --log_hide_time is given.
inline constexpr char kLogTime[] = "time=%Y-%m-%dT%H:%M:%S.%e%z ";

// Disables core files, because the memory contains a secret or a key.
void LeaveNoCore();

// Raises the limit of open files to the hard limit.
void RaiseOpenFiles();

// Makes std::terminate() write the reason to stderr. If a thread could not be
// started, the line names the limit. `program` must live as long as the
// process.
void ExplainTermination(const char* program);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_PROCESS_H_
