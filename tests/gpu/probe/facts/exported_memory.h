// Fact 4: the commands of its two roles. BYTES and FREE are bytes.
//
//   holder:    allocate BYTES            -> descriptor BYTES (with it),
//   exported
//              import BYTES (descriptor) -> imported
//              write WORD                -> written     the whole memory
//              check WORD                -> holds 1     or 0: not everywhere
//              busy WORD                 -> busy        writes go on, unawaited
//              free                      -> freed
//   observer:  room                      -> room FREE
//
// Thread contract: a role is the main thread of its process.
#ifndef MAYPOLE_TESTS_GPU_PROBE_FACTS_EXPORTED_MEMORY_H_
#define MAYPOLE_TESTS_GPU_PROBE_FACTS_EXPORTED_MEMORY_H_

#include "absl/status/status.h"
#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {

absl::Status PlayHolder(Stage& stage);
absl::Status PlayObserver(Stage& stage);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_FACTS_EXPORTED_MEMORY_H_
