// maypolectl: see Usage() in options.cc.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/ctl/commands.h"
#include "client/ctl/options.h"
#include "common/program/arguments.h"
#include "grpc/support/log.h"

namespace {

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "maypolectl: %s\n",
               std::string(status.message()).c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = maypole::ctl::ParseOptions(
      std::vector<std::string>(argv + 1, argv + argc),
      [](const std::string& name) {
        const char* value = std::getenv(name.c_str());
        return std::string(value == nullptr ? "" : value);
      });
  if (!options.ok()) return Fail(options.status(), maypole::kUsageError);
  if (options->help || options->version) {
    const std::string text = options->help ? maypole::ctl::Usage()
                                           : std::string("maypolectl ") +
                                                 maypole::ctl::kVersion + "\n";
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  // Its own lines would stand beside our one.
  gpr_set_log_function([](gpr_log_func_args*) {});
  const absl::Status status = maypole::ctl::Run(*options);
  return status.ok() ? 0 : Fail(status, 1);
}
