#include "tests/gpu/probe/lab.h"
#include "worker/backend/gpu/loaded_gpu.h"

namespace maypole::probe {

absl::StatusOr<std::unique_ptr<gpu::Driver>> OpenDriver(
    const Options& options) {
  if (options.fake) return absl::UnavailableError("there is no fake yet");
  return gpu::LoadDriver(
      options.plugin.empty() ? gpu::DefaultPluginPath() : options.plugin,
      options.nccl);
}

}  // namespace maypole::probe
