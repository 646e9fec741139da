// maypolerun: starts the ranks of a job; see usage.cc.
#include <limits.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/launcher/guard.h"
#include "client/launcher/options.h"
#include "client/launcher/process.h"
#include "common/fusion_threshold.h"

namespace {

constexpr int kWrongUsage = 2;
constexpr int kCannotRun = 126;  // as shells say it
constexpr int kNotFound = 127;

std::string OwnHost() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

int Run(const std::vector<std::string>& args) {
  namespace launcher = maypole::launcher;
  launcher::Options options;
  maypole::Status status = launcher::ParseOptions(args, OwnHost(), &options);
  if (!status.ok()) {
    std::fprintf(stderr, "maypolerun: %s\n", status.message().c_str());
    return kWrongUsage;
  }
  if (options.help) {
    std::fputs(launcher::Usage().c_str(), stdout);
    return 0;
  }
  if (options.version) {
    std::printf("maypolerun %s\n", launcher::kVersion);
    return 0;
  }
  status = maypole::ReadFusionThreshold(getenv, &options.fusion_threshold);
  if (!status.ok()) {
    std::fprintf(stderr, "maypolerun: %s\n", status.message().c_str());
    return kWrongUsage;
  }
  std::string program;
  status = launcher::FindProgram(options.command[0], &program);
  if (!status.ok()) {
    std::fprintf(stderr, "maypolerun: cannot run %s\n",
                 status.message().c_str());
    return status.code() == maypole::Code::kPermissionDenied ? kCannotRun
                                                             : kNotFound;
  }
  return launcher::RunGuarded(options, program);
}

}  // namespace

int main(int argc, char** argv) {
  return Run(std::vector<std::string>(argv + 1, argv + argc));
}
