// What a daemon asks of the kernel for itself, before it starts.
//
// Thread contract: before any thread starts.
#ifndef MAYPOLE_COMMON_PROGRAM_PROCESS_H_
#define MAYPOLE_COMMON_PROGRAM_PROCESS_H_

namespace maypole {

// A secret or a key is in its memory: no core file.
void LeaveNoCore();

// As many open files as its user may have.
void RaiseOpenFiles();

// A thread that cannot be started, which nothing handles, ends the program with
// a line on stderr that names the limit. `program` must live as long as it.
void ExplainTermination(const char* program);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_PROCESS_H_
