#include "tests/gpu/fake/calls/entry_points.h"

#include <cstring>

#include "tests/gpu/fake/config.h"
#include "tests/gpu/fake/process.h"

namespace maypole::cuda::fake {
namespace {

const EntryPoint* Find(const char* name) {
  for (const auto* entries :
       {&DeviceEntries(), &MemoryEntries(), &ShareableEntries(),
        &StreamEntries(), &EventEntries(), &KernelEntries()}) {
    for (const EntryPoint& entry : *entries) {
      if (std::strcmp(entry.name, name) == 0) return &entry;
    }
  }
  return nullptr;
}

}  // namespace

extern "C" CUresult cuGetProcAddress_v2(
    const char* name, void** function, int version, uint64_t,
    CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || function == nullptr ||
      version > FakeProcess::Get().config().driver) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const EntryPoint* const entry = Find(name);
  auto result = CU_GET_PROC_ADDRESS_SUCCESS;
  if (entry == nullptr) {
    result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  } else if (version < entry->since) {
    result = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  }
  if (status != nullptr) *status = result;
  *function = result == CU_GET_PROC_ADDRESS_SUCCESS ? entry->function : nullptr;
  return CUDA_SUCCESS;
}

}  // namespace maypole::cuda::fake
