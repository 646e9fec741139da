// LoadDriver: the GPUs of this machine, through the plugin libmaypole_gpu.so.
//
// Purpose: wraps the plugin's table of C functions (plugin_abi.h) in Driver and
// Gpu. Nothing of CUDA is linked: a program that uses this also starts on a
// machine without a GPU, and LoadDriver returns why none can be used, in one
// line.
//
//   auto driver = LoadDriver(DefaultPluginPath());
//   if (!driver.ok()) Log(driver.status().message());   // "no GPUs: ..."
//   auto gpu = (*driver)->Open((*driver)->Devices()->front().uuid);
//
// Errors of LoadDriver: kUnavailable (no such file, no NVIDIA driver, no
// device), kFailedPrecondition (the file is not a plugin, or of another
// version). Without NCCL it succeeds; versions().nccl_error says what is
// missing.
//
// Thread contract: as gpu.h's. The plugin stays loaded until the process ends,
// so a Gpu may outlive its Driver. A process that forks must do so before.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_LOADED_GPU_H_
#define MAYPOLE_WORKER_BACKEND_GPU_LOADED_GPU_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/backend/gpu/gpu.h"

namespace maypole::gpu {

// Returns $MAYPOLE_GPU_PLUGIN or, if it is not set, libmaypole_gpu.so in the
// directory of the running program.
std::string DefaultPluginPath();

// `nccl` is the path of libnccl.so.2. If it is empty, the plugin looks for
// libnccl.so.2 as the dynamic linker does, then in $NCCL_HOME/lib.
absl::StatusOr<std::unique_ptr<Driver>> LoadDriver(
    const std::string& plugin, const std::string& nccl = "");

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_LOADED_GPU_H_
