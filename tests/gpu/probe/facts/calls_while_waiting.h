// Part of fact 8: which CUDA calls block while a stream of the same process
// waits for a flag? An executor makes such calls while operations are
// outstanding.
//
// Adds one row.
#ifndef MAYPOLE_TESTS_GPU_PROBE_FACTS_CALLS_WHILE_WAITING_H_
#define MAYPOLE_TESTS_GPU_PROBE_FACTS_CALLS_WHILE_WAITING_H_

#include "tests/gpu/probe/lab/lab.h"

namespace maypole::probe {

void CallsWhileWaiting(Lab& lab);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_FACTS_CALLS_WHILE_WAITING_H_
