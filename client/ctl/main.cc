// maypolectl: see --help, or options.cc.
#include <cstdlib>
#include <string>
#include <vector>

#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "common/absl_status.h"
#include "common/command_line/command_line.h"
#include "grpc/support/log.h"

int main(int argc, char** argv) {
  constexpr char kProgram[] = "maypolectl";
  const auto options = maypole::ctl::ParseOptions(
      {argv + 1, argv + argc}, [](const std::string& name) {
        const char* value = std::getenv(name.c_str());
        return std::string(value == nullptr ? "" : value);
      });
  if (!options.ok()) {
    return maypole::PrintError(kProgram, maypole::FromAbsl(options.status()),
                               maypole::kUsageError);
  }
  if (options->answer) return maypole::PrintAnswer(*options->answer);
  // gRPC must not print log lines beside our error line.
  gpr_set_log_function([](gpr_log_func_args*) {});
  const absl::Status status = maypole::ctl::Run(*options);
  return status.ok()
             ? 0
             : maypole::PrintError(kProgram, maypole::FromAbsl(status), 1);
}
