// Digests of the weights and of the optimizer's state, which ranks compare in
// some steps (maypole/jax/_checks.py). A custom call of XLA computes them,
// because it reads the arrays only in these steps, and costs no compile time.
//
// Thread contract: any thread of XLA.
#ifndef MAYPOLE_CLIENT_JAX_DIGEST_H_
#define MAYPOLE_CLIENT_JAX_DIGEST_H_

#include <cstdint>

#include "client/xla/xla_ffi.h"

namespace maypole::jax {

// For each argument but the first a number, then the numbers' complements; if
// nothing is compared after this many steps (the first argument), the greatest
// integer for all. Returns false if the call's arrays are not those expected.
bool WriteDigests(const xla::ffi::CallFrame& frame);

}  // namespace maypole::jax

#endif  // MAYPOLE_CLIENT_JAX_DIGEST_H_
