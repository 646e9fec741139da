// Failure: the exception type inside the plugin; table.cc catches it before a
// function of the table returns.
//
//   if (bytes == 0) throw InvalidArgument("cannot allocate 0 bytes");
//
// cuda_failure.h makes Failures from CUDA errors.
//
// Thread contract: values and pure functions.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_FAILURE_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_FAILURE_H_

#include <cstdint>
#include <string>

#include "worker/backend/gpu/plugin_abi.h"

namespace maypole::gpu::plugin {

struct Failure {
  MaypoleGpuCode code;
  int32_t native;  // CUDA's or NCCL's number; 0 if the plugin found the error
  std::string text;
};

Failure InvalidArgument(std::string text);
Failure FailedPrecondition(std::string text);
Failure Unimplemented(std::string text);
Failure Unavailable(std::string text);

// "0x7f0000000000".
std::string Hex(uint64_t address);

// Writes the failure to *error, as one line that fits; returns its code.
int Report(const Failure& failure, MaypoleGpuError* error);

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_FAILURE_H_
