// Facts 1 and 2: the commands of their two roles.
//
// The spinner keeps multiprocessors busy, the copier moves memory; each is an
// actor of its own. Times are nanoseconds of Now().
//
//   spinner:  warm                        -> warm
//             train BLOCKS LIMIT          -> spinning
//                 then stop               -> stopped STILL
//             spins COUNT AT              -> took HOST
//   copier:   count WORK BLOCKS TARGET    -> count COUNT
//             batch WORK BLOCKS COUNT AT  -> took DEVICE HOST
//
// BLOCKS: 0 means enough to fill the device. train: spins back to back, until
// it is stopped or LIMIT ns have passed; STILL is 1 if it was still spinning
// when it was stopped. AT: when to begin, 0 for at once. DEVICE is between two
// events of the stream, HOST from AT (or the beginning) to the end of the last
// piece.
//
// Thread contract: a role is the main thread of its process.
#ifndef MAYPOLE_TESTS_GPU_PROBE_FACTS_OVERLAP_H_
#define MAYPOLE_TESTS_GPU_PROBE_FACTS_OVERLAP_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {

inline constexpr int64_t kSpinNs = 20'000'000;

enum class Work : int {
  kKernel = 0,      // KernelCopy within the device
  kWithin = 1,      // Copy within the device
  kToDevice = 2,    // Copy from registered memory of the host
  kFromDevice = 3,  // Copy to it
};

// The kind of copy of a batch.
inline uint64_t PieceBytes(const Options& options, Work work) {
  const bool host = work == Work::kToDevice || work == Work::kFromDevice;
  if (options.quick) return host ? 4 << 20 : 16 << 20;
  return host ? 256 << 20 : 1 << 30;
}

absl::Status PlaySpinner(Stage& stage);
absl::Status PlayCopier(Stage& stage);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_FACTS_OVERLAP_H_
