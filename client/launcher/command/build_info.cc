#include "client/launcher/command/build_info.h"

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

}  // namespace

std::string DescribeBuild() {
  std::string coordinator, worker, ssh;
  Status coordinator_status = FindDaemon(kCoordinatorProgram, &coordinator);
  Status worker_status = FindDaemon(kWorkerProgram, &worker);
  const GpuFacts gpus = FindGpuFacts();
  Status ssh_status = FindProgram(kSshProgram, &ssh);
  return std::string("Maypole v") + kVersion + " (protocol " +
         std::to_string(kProtocolVersion) + "):\n\nAvailable Frameworks:\n" +
         Line(false, "TensorFlow") + Line(true, "PyTorch") +
         Line(false, "MXNet") + "\nAvailable Controllers:\n" +
         Program(coordinator_status, kCoordinatorProgram, coordinator,
                 "several ranks") +
         Program(worker_status, kWorkerProgram, worker, "several ranks") +
         Program(ssh_status, kSshProgram, ssh, "other hosts") +
         Line(false, "MPI") + "\nAvailable Tensor Operations:\n" +
         Line(true, "shared memory (on a node)") +
         Line(true, "Gloo (between nodes)") +
         Line(gpus.driver.ok() && !UsableNccl(gpus).empty(), "NCCL") +
         Line(false, "MPI") + DescribeGpus(gpus);
}

}  // namespace maypole::launcher
