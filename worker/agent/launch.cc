#include "worker/agent/launch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"

namespace maypole::worker {
namespace {

constexpr char kSelf[] = "/proc/self/exe";
// Descriptor numbers in the executor.
constexpr int kControlFd = 3;
constexpr int kStatsFd = 4;
constexpr int kTlsFd = 5;

}  // namespace

absl::StatusOr<Child> LaunchExecutor(const LaunchOptions& options) {
  SpawnOptions spawn;
  spawn.program = kSelf;
  spawn.arguments = {"maypole-worker", "--executor",
                     absl::StrCat("--control_fd=", kControlFd),
                     absl::StrCat("--stats_fd=", kStatsFd)};
  spawn.environment = options.environment;
  spawn.descriptors = {{.fd = options.control_fd, .number = kControlFd},
                       {.fd = options.stats_fd, .number = kStatsFd}};
  if (options.tls_fd >= 0) {
    spawn.arguments.push_back(absl::StrCat("--tls_fd=", kTlsFd));
    spawn.descriptors.push_back({.fd = options.tls_fd, .number = kTlsFd});
  }
  spawn.arguments.insert(spawn.arguments.end(), options.arguments.begin(),
                         options.arguments.end());
  Child child;
  if (const Status s = Spawn(spawn, &child); !s.ok()) return ToAbsl(s);
  return child;
}

}  // namespace maypole::worker
