// Reads NCCL's log (NCCL_DEBUG=WARN, NCCL_DEBUG_FILE).
//
// Thread contract: pure.
#ifndef MAYPOLE_TESTS_GPU_PROBE_LAB_NCCL_LOG_H_
#define MAYPOLE_TESTS_GPU_PROBE_LAB_NCCL_LOG_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace maypole::probe {

// The last `count` warnings, each once and without host, process and place, in
// one line: "Duplicate GPU detected : rank 0 and rank 1 both on ...". Empty if
// there are none.
std::string LastWarnings(std::string_view log, size_t count);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_LAB_NCCL_LOG_H_
