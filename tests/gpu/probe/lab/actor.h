// The command line and the error line of an actor: between Lab::Start and
// PlayRole.
//
//   PROGRAM --actor ROLE FD PLUGIN NCCL FAKE QUICK DEVICE [ARGUMENT...]
//
// Thread contract: pure functions.
#ifndef MAYPOLE_TESTS_GPU_PROBE_LAB_ACTOR_H_
#define MAYPOLE_TESTS_GPU_PROBE_LAB_ACTOR_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {

std::vector<std::string> ActorCommandLine(
    const std::string& role, int channel, const Options& options,
    const std::vector<std::string>& arguments);

// "error CODE TEXT": the last line of a role that failed.
inline constexpr char kErrorWord[] = "error";
std::string ErrorLine(const absl::Status& status);
absl::Status ParseErrorLine(const std::string& line);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_LAB_ACTOR_H_
