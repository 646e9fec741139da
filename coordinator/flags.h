// Flags of maypole-coordinator, checked.
#ifndef MAYPOLE_COORDINATOR_FLAGS_H_
#define MAYPOLE_COORDINATOR_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/service/server.h"

namespace maypole::coordinator {

struct CoordinatorFlags {
  ServerOptions server;
  int announce_fd = -1;  // negative: none
  std::string log_level = "info";
  std::optional<std::string> answer;  // --help and its like: print it, and end
};

// args: without the program's name. Reads the files that the flags name. An
// error says which flag is wrong.
absl::StatusOr<CoordinatorFlags> ReadFlags(
    const std::vector<std::string>& args);

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_FLAGS_H_
