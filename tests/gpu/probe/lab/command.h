// Command: runs a program of the machine and returns its output.
//
// Thread contract: any thread. No wait without a deadline.
#ifndef MAYPOLE_TESTS_GPU_PROBE_LAB_COMMAND_H_
#define MAYPOLE_TESTS_GPU_PROBE_LAB_COMMAND_H_

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {

struct Command {
  std::vector<std::string> arguments;  // the first is looked for in PATH
  std::map<std::string, std::string> environment = {};  // added, or replaces
  std::string input = {};
};

// The environment of this process with `changes`, as execve takes it.
std::vector<std::string> Environment(
    const std::map<std::string, std::string>& changes);

// Pointers into `strings` with a null at the end, as execve takes them.
std::vector<char*> Pointers(std::vector<std::string>& strings);

// Returns its output (stdout and stderr). kNotFound: no such program;
// kUnavailable: it ended with another status than 0; kDeadlineExceeded: it was
// killed.
absl::StatusOr<std::string> RunCommand(const Command& command,
                                       Duration timeout);

// Waits for a child's end; returns its wait status if it ends within the
// timeout, and reaps it.
std::optional<int> WaitForExit(pid_t child, Duration timeout);

// "ended with status 1", "was killed by signal 9".
std::string ExitText(int wait_status);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_LAB_COMMAND_H_
