#include "client/ctl/program.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "common/absl_status.h"
#include "common/command_line/command_line.h"
#include "grpc/support/log.h"

namespace maypole::ctl {

int Main(const std::vector<std::string>& args) {
  constexpr char kProgram[] = "maypolectl";
  const auto options = ParseOptions(args, [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  });
  if (!options.ok()) {
    return PrintError(kProgram, FromAbsl(options.status()), kUsageError);
  }
  if (options->answer) return PrintAnswer(*options->answer);
  // gRPC must not print log lines beside our error line.
  gpr_set_log_function([](gpr_log_func_args*) {});
  const absl::Status status = Run(*options);
  return status.ok() ? 0 : PrintError(kProgram, FromAbsl(status), 1);
}

}  // namespace maypole::ctl
