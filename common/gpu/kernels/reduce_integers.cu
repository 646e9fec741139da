// The reductions of integers and bool (reduce.h).
#include "common/gpu/kernels/reduce.h"

namespace maypole::cuda {

MAYPOLE_REDUCE_INTEGERS(MAYPOLE_REDUCE_KERNEL)

}  // namespace maypole::cuda
