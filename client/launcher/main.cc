// maypolerun: starts the ranks of a job; see usage.cc.
#include <errno.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "client/launcher/build_info.h"
#include "client/launcher/guard.h"
#include "client/launcher/job.h"
#include "client/launcher/node_runner.h"
#include "client/launcher/options.h"
#include "client/launcher/own_addresses.h"
#include "client/launcher/process.h"
#include "client/launcher/service.h"
#include "client/launcher/ssh.h"
#include "common/fusion_threshold.h"

namespace {

namespace launcher = maypole::launcher;
using maypole::Status;

constexpr int kWrongUsage = 2;
constexpr int kCannotRun = 126;  // as shells say it
constexpr int kNotFound = 127;

Status ReadFile(const std::string& path, std::string* out) {
  std::ifstream file(path);
  out->assign(std::istreambuf_iterator<char>(file), {});
  // A directory opens, and cannot be read.
  if (file.is_open() && !file.bad()) return Status();
  return maypole::ErrnoStatus(errno, "cannot read " + path);
}

std::string OwnPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

int Refuse(const Status& status, int code) {
  std::fprintf(stderr, "maypolerun: %s\n", status.message().c_str());
  return code;
}

// What this machine can say before anything is started.
Status CheckFiles(const launcher::Options& options) {
  if (options.identity_file.empty() ||
      access(options.identity_file.c_str(), R_OK) == 0) {
    return Status();
  }
  return maypole::ErrnoStatus(
      errno, "cannot read " + options.identity_file + " (--ssh-identity-file)");
}

bool AnyNodeIsHere(const launcher::Options& options) {
  for (int node = 0; node < options.nodes; ++node) {
    if (launcher::NodeIsHere(options, node)) return true;
  }
  return false;
}

int RunJob(const launcher::Options& options) {
  launcher::Job::Settings settings{.options = options};
  if (AnyNodeIsHere(options)) {
    Status status =
        launcher::FindProgram(options.command[0], &settings.program);
    if (!status.ok()) {
      bool denied = status.code() == maypole::Code::kPermissionDenied;
      return Refuse(Status(status.code(), "cannot run " + status.message()),
                    denied ? kCannotRun : kNotFound);
    }
  }
  settings.remote_program = options.remote_bin.empty()
                                ? OwnPath()
                                : options.remote_bin + "/maypolerun";
  return launcher::RunGuarded(launcher::StartsDaemons(options),
                              [&settings](const launcher::Supervised& where) {
                                settings.where = where;
                                return launcher::Job(settings).Run();
                              });
}

int Run(const std::vector<std::string>& args) {
  launcher::Options options;
  Status status = launcher::ParseOptions(args,
                                         {.is_here = launcher::IsThisMachine,
                                          .read_file = ReadFile,
                                          .variable = getenv},
                                         &options);
  if (!status.ok()) return Refuse(status, kWrongUsage);
  if (options.help) {
    std::fputs(launcher::Usage().c_str(), stdout);
    return 0;
  }
  if (options.version) {
    std::printf("maypolerun %s\n", launcher::kVersion);
    return 0;
  }
  if (options.check_build) {
    std::fputs(launcher::DescribeBuild().c_str(), stdout);
    return 0;
  }
  status = maypole::ReadFusionThreshold(getenv, &options.fusion_threshold);
  if (status.ok()) status = CheckFiles(options);
  if (!status.ok()) return Refuse(status, kWrongUsage);
  return RunJob(options);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], launcher::kNodeFlag) == 0) {
    return launcher::RunNodeOfJob();
  }
  if (argc == 3 && std::strcmp(argv[1], launcher::kNodeServiceFlag) == 0) {
    return launcher::RunNodeService(argv[2]);
  }
  return Run(std::vector<std::string>(argv + 1, argv + argc));
}
