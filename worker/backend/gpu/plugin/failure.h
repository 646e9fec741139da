// Failure: an error inside the plugin, thrown and caught before any function of
// the table returns (table.cc).
//
//   if (bytes == 0) throw InvalidArgument("memory of 0 bytes was asked for");
//
// Those of CUDA's calls: cuda_failure.h.
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
  int32_t native;  // 0: found by the plugin itself
  std::string text;
};

Failure InvalidArgument(std::string text);
Failure FailedPrecondition(std::string text);
Failure Unimplemented(std::string text);
Failure Unavailable(std::string text);

// "0x7f0000000000".
std::string Hex(uint64_t address);

// Writes it into *error, as one line that fits; returns its code.
int Report(const Failure& failure, MaypoleGpuError* error);

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_FAILURE_H_
