// maypolerun: starts the ranks of a job; see usage.cc and options.h.
#include <errno.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/launcher/command/build_info.h"
#include "client/launcher/command/options.h"
#include "client/launcher/hosts/own_addresses.h"
#include "client/launcher/job/job_launcher.h"
#include "client/launcher/node/node_runner.h"
#include "client/launcher/process/function_files.h"
#include "client/launcher/process/guard.h"
#include "client/launcher/process/process.h"
#include "client/launcher/service/service.h"
#include "common/command_line/command_line.h"
#include "common/fusion_threshold.h"
#include "common/system/kernel_calls.h"
#include "common/system/text_file.h"

namespace {

namespace launcher = maypole::launcher;
using maypole::Status;

constexpr int kCannotRun = 126;  // exit statuses that shells use
constexpr int kNotFound = 127;

Status ReadFile(const std::string& path, std::string* out) {
  const Status status = maypole::ReadTextFile(path, out);
  if (status.ok()) return status;
  return Status(status.code(), "cannot read " + status.message());
}

// Ends maypolerun before a job was started.
int Refuse(const launcher::LauncherOptions& options, const Status& status,
           int code) {
  if (!options.function_directory.empty()) {
    // If the outcome cannot be written, the exit status still shows that there
    // is no job.
    (void)launcher::WriteOutcome(options.function_directory,
                                 {.cause = status.message()});
  }
  return maypole::PrintError("maypolerun", status, code);
}

// The job must end with the Python program that waits for its results, even if
// the program is killed.
void EndWithParent() { prctl(PR_SET_PDEATHSIG, SIGTERM); }

// Finds errors that are visible on this machine before anything is started.
Status CheckFiles(const launcher::LauncherOptions& options) {
  if (options.identity_file.empty() ||
      access(options.identity_file.c_str(), R_OK) == 0) {
    return Status();
  }
  return maypole::ErrnoStatus(
      errno, "cannot read " + options.identity_file + " (--ssh-identity-file)");
}

int RunJob(const launcher::LauncherOptions& options) {
  for (const std::string& note : options.notes) {
    fprintf(stderr, "maypolerun: %s\n", note.c_str());
  }
  if (options.elastic || std::any_of(options.hosts.begin(), options.hosts.end(),
                                     [](const auto& h) { return h.here; })) {
    std::string program;
    Status status = launcher::FindProgram(options.command[0], &program);
    if (!status.ok()) {
      bool denied = status.code() == maypole::Code::kPermissionDenied;
      return Refuse(options,
                    Status(status.code(), "cannot run " + status.message()),
                    denied ? kCannotRun : kNotFound);
    }
  }
  return launcher::RunGuarded(
      launcher::StartsDaemons(options),
      [&options](const launcher::Supervised& where) {
        return launcher::JobLauncher(options, where).Run();
      });
}

int Run(const std::vector<std::string>& args) {
  launcher::LauncherOptions options;
  Status status = launcher::ParseOptions(
      args,
      {.is_here = launcher::IsThisMachine,
       .read_file = ReadFile,
       .variable = getenv,
       .program_directory = launcher::OwnPath().parent_path()},
      &options);
  if (!status.ok()) return Refuse(options, status, maypole::kUsageError);
  if (!options.function_directory.empty()) EndWithParent();
  if (options.answer) return maypole::PrintAnswer(*options.answer);
  if (options.check_build) {
    std::string missing;
    const int status = maypole::PrintAnswer(launcher::DescribeBuild(&missing));
    if (status != 0 || missing.empty()) return status;
    return Refuse(options, Status(maypole::Code::kNotFound, missing), 1);
  }
  status = maypole::CheckKernelCalls();
  if (!status.ok()) return Refuse(options, status, 1);
  if (options.node_of_job) return launcher::RunNodeOfJob();
  if (!options.service_directory.empty()) {
    return launcher::RunNodeService(options.service_directory);
  }
  // Ranks on all hosts start with our environment.
  for (const auto& [name, value] : options.environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  status = maypole::ReadFusionThreshold(getenv, &options.fusion_threshold);
  if (status.ok()) status = CheckFiles(options);
  if (!status.ok()) return Refuse(options, status, maypole::kUsageError);
  return RunJob(options);
}

}  // namespace

// Under the name horovodrun, scripts that import horovod find Maypole.
int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  const std::string name = argc > 0 ? argv[0] : "";
  if (name.substr(name.rfind('/') + 1) == "horovodrun") {
    args.insert(args.begin(), "--horovod-shim");
  }
  return Run(args);
}
