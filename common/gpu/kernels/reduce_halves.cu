// The reductions of float16 and bfloat16 (reduce.h).
#include "common/gpu/kernels/reduce.h"

namespace maypole::cuda {

MAYPOLE_REDUCE_HALVES(MAYPOLE_REDUCE_KERNEL)

}  // namespace maypole::cuda
