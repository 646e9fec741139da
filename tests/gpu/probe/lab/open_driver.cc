#include <cstdlib>

#include "tests/gpu/probe/lab/lab.h"
#include "worker/backend/gpu/loaded_gpu.h"
#include "worker/backend/gpu/testing/fake_gpu.h"

namespace maypole::probe {

absl::StatusOr<std::shared_ptr<void>> PrepareDrivers(const Options& options) {
  if (!options.fake) return std::shared_ptr<void>();
  const auto machine = gpu::FakeMachine::Create({});
  if (!machine.ok()) return machine.status();
  setenv(gpu::kFakeGpuVariable, (*machine)->environment().c_str(), 1);
  return std::shared_ptr<void>(*machine);
}

absl::StatusOr<std::unique_ptr<gpu::Driver>> OpenDriver(
    const Options& options) {
  if (options.fake) return gpu::OpenFakeDriver();
  return gpu::LoadDriver(
      options.plugin.empty() ? gpu::DefaultPluginPath() : options.plugin,
      options.nccl);
}

}  // namespace maypole::probe
