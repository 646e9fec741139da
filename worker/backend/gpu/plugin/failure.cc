#include "worker/backend/gpu/plugin/failure.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

namespace maypole::gpu::plugin {

Failure InvalidArgument(std::string text) {
  return {MAYPOLE_GPU_INVALID_ARGUMENT, 0, std::move(text)};
}
Failure FailedPrecondition(std::string text) {
  return {MAYPOLE_GPU_FAILED_PRECONDITION, 0, std::move(text)};
}
Failure Unimplemented(std::string text) {
  return {MAYPOLE_GPU_UNIMPLEMENTED, 0, std::move(text)};
}
Failure Unavailable(std::string text) {
  return {MAYPOLE_GPU_UNAVAILABLE, 0, std::move(text)};
}

std::string Hex(uint64_t address) {
  std::ostringstream out;
  out << "0x" << std::hex << address;
  return out.str();
}

int Report(const Failure& failure, MaypoleGpuError* error) {
  error->native = failure.native;
  std::string line = failure.text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  const size_t length = std::min(line.size(), sizeof(error->text) - 1);
  memcpy(error->text, line.data(), length);
  error->text[length] = '\0';
  return failure.code;
}

}  // namespace maypole::gpu::plugin
