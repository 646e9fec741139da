// Reads and checks the flags of maypole-coordinator.
//
// Thread contract: a function; it reads the files that the flags name.
#ifndef MAYPOLE_COORDINATOR_FLAGS_H_
#define MAYPOLE_COORDINATOR_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/election_flags.h"
#include "coordinator/service/server.h"

namespace maypole::coordinator {

struct CoordinatorFlags {
  ServerOptions server;
  ElectionFlags election;
  int announce_fd = -1;  // negative: none
  std::string log_level = "info";
  bool log_hide_time = false;
  // Set for --help, --version and the like: the program prints it and ends.
  std::optional<std::string> answer;
};

// `args` must not contain the program's name. An error names the flag that is
// wrong.
absl::StatusOr<CoordinatorFlags> ReadFlags(
    const std::vector<std::string>& args);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_FLAGS_H_
