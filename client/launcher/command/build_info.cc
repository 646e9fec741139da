#include "client/launcher/command/build_info.h"

#include <stdlib.h>

#include <map>
#include <utility>
#include <vector>

#include "client/launcher/command/framework_rows.h"
#include "client/launcher/command/gpu_info.h"
#include "client/launcher/command/options.h"
#include "client/launcher/hosts/ssh.h"
#include "client/launcher/process/announcement.h"
#include "client/launcher/process/process.h"
#include "common/limits.h"
#include "common/version.h"

namespace maypole::launcher {
namespace {

std::string Line(bool there, const std::string& what) {
  return std::string("    [") + (there ? "X" : " ") + "] " + what + "\n";
}

std::string Program(const Status& status, const std::string& name,
                    const std::string& path, const std::string& use) {
  return Line(status.ok(), name + " (" + use +
                               "): " + (status.ok() ? path : status.message()));
}

std::string Lines(const std::vector<FrameworkRow>& rows) {
  std::string lines;
  for (const FrameworkRow& row : rows) {
    lines += Line(row.supported, row.text);
    for (const std::string& note : row.notes) {
      lines += "          " + note + "\n";
    }
  }
  return lines;
}

// What Horovod would refuse at installation; Maypole can check it only now.
std::string Missing(const std::vector<FrameworkRow>& rows) {
  std::map<std::string, bool> supported;
  for (const FrameworkRow& row : rows) supported[row.module] = row.supported;
  const std::pair<const char*, bool> wanted[] = {
      {"HOROVOD_WITH_TENSORFLOW", supported["tensorflow"]},
      {"HOROVOD_WITH_PYTORCH", supported["torch"]},
      {"HOROVOD_WITH_MXNET", supported["mxnet"]},
      {"HOROVOD_WITH_MPI", false},
      {"HOROVOD_WITH_GLOO", true}};
  std::string names;
  for (const auto& [name, there] : wanted) {
    const char* const value = getenv(name);
    if (there || value == nullptr || std::string(value) != "1") continue;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names.empty() ? "" : names + ": it is not there, see above";
}

}  // namespace

std::string DescribeBuild(std::string* missing) {
  std::string coordinator, worker, ssh;
  Status coordinator_status = FindDaemon(kCoordinatorProgram, &coordinator);
  Status worker_status = FindDaemon(kWorkerProgram, &worker);
  const GpuFacts gpus = FindGpuFacts();
  Status ssh_status = FindProgram(kSshProgram, &ssh);
  const std::vector<FrameworkRow> frameworks =
      DescribeFrameworks(FindFrameworks());
  *missing = Missing(frameworks);
  return std::string("Maypole v") + kVersion + " (protocol " +
         std::to_string(kProtocolVersion) + "):\n\nAvailable Frameworks:\n" +
         Lines(frameworks) + "\nAvailable Controllers:\n" +
         Program(coordinator_status, kCoordinatorProgram, coordinator,
                 "several ranks") +
         Program(worker_status, kWorkerProgram, worker, "several ranks") +
         Program(ssh_status, kSshProgram, ssh, "other hosts") +
         Line(false,
              "MPI (not needed; mpirun may start the ranks: docs/start.md)") +
         Line(true, "Gloo (Horovod's name for: without MPI)") +
         "\nAvailable Tensor Operations:\n" +
         Line(true, "shared memory (on a node)") +
         Line(true, "Gloo (Horovod's name for: TCP between nodes)") +
         Line(gpus.driver.ok() && !UsableNccl(gpus).empty(), "NCCL") +
         Line(false, "DDL (IBM's; NCCL is used)") +
         Line(false, "CCL (Intel's; shared memory and TCP are used)") +
         Line(false, "MPI (shared memory and TCP are used)") +
         DescribeGpus(gpus);
}

}  // namespace maypole::launcher
