// LoadDriver: the GPUs of this machine, through the plugin libmaypole_gpu.so.
//
// Purpose: turns the plugin's table of C functions (plugin_abi.h) into Driver
// and Gpu. Nothing of CUDA is linked: a program that uses this starts on a
// machine without a GPU, and LoadDriver says in one line why there is none.
//
//   auto driver = LoadDriver(DefaultPluginPath());
//   if (!driver.ok()) LOG << driver.status().message();   // "no GPUs: ..."
//   auto gpu = (*driver)->Open((*driver)->Devices()->front().uuid);
//
// Errors of LoadDriver: kUnavailable (no such file, no NVIDIA driver, no
// device), kFailedPrecondition (a file that is no plugin, or one of another
// version). Without NCCL it succeeds: versions().nccl_error says why.
//
// Thread contract: as gpu.h's. The plugin stays loaded until the process ends:
// a Gpu may outlive its Driver. A process that will fork does so before.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_LOADED_GPU_H_
#define MAYPOLE_WORKER_BACKEND_GPU_LOADED_GPU_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/backend/gpu/gpu.h"

namespace maypole::gpu {

// $MAYPOLE_GPU_PLUGIN, else libmaypole_gpu.so beside the running program.
std::string DefaultPluginPath();

// nccl: path of libnccl.so.2; empty: the plugin looks for it (libnccl.so.2 as
// the dynamic linker finds it, else in $NCCL_HOME/lib).
absl::StatusOr<std::unique_ptr<Driver>> LoadDriver(
    const std::string& plugin, const std::string& nccl = "");

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_LOADED_GPU_H_
