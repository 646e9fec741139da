// The reductions of float32 and float64 (reduce.h).
#include "common/gpu/kernels/reduce.h"

namespace maypole::cuda {

MAYPOLE_REDUCE_FLOATS(MAYPOLE_REDUCE_KERNEL)

}  // namespace maypole::cuda
