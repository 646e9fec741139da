// EntryPoint: a function that cuGetProcAddress_v2 can return.
//
// Purpose: every file of calls ends with a table of the functions that it
// implements. Entry() does not compile if a function's type differs from that
// of the member of Driver.
//
//   const std::vector<EntryPoint>& StreamEntries() {
//     static const auto& entries = *new std::vector<EntryPoint>{
//         Entry("cuStreamQuery", 2000, &Driver::cuStreamQuery, cuStreamQuery),
//     };
//     return entries;
//   }
//
// Thread contract: constants.
#ifndef MAYPOLE_TESTS_GPU_FAKE_ENTRY_POINTS_H_
#define MAYPOLE_TESTS_GPU_FAKE_ENTRY_POINTS_H_

#include <vector>

#include "common/gpu/driver.h"

namespace maypole::cuda::fake {

struct EntryPoint {
  const char* name;  // without _v2
  int since;         // the version of CUDA that has it in this form
  void* function;
};

template <typename Function>
EntryPoint Entry(const char* name, int since, Function Driver::*,
                 Function function) {
  return {name, since, reinterpret_cast<void*>(function)};
}

const std::vector<EntryPoint>& DeviceEntries();
const std::vector<EntryPoint>& MemoryEntries();
const std::vector<EntryPoint>& ShareableEntries();
const std::vector<EntryPoint>& StreamEntries();
const std::vector<EntryPoint>& EventEntries();
const std::vector<EntryPoint>& KernelEntries();

}  // namespace maypole::cuda::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_ENTRY_POINTS_H_
