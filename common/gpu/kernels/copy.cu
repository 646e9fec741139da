// The kernels that copy pieces and that write a word.
#include "common/gpu/kernels/copy.h"

namespace maypole::cuda {

// kernels.h: kCopyKernel.
extern "C" __global__ void __launch_bounds__(kBlockThreads) maypole_copy_pieces(
    const __grid_constant__ maypole::cuda::CopyArguments arguments) {
  CopyInBlock(arguments, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x);
}

// kernels.h: kWriteWordKernel.
extern "C" __global__ void __launch_bounds__(1)
    maypole_write_word(uint64_t address, uint64_t value) {
  PublishWord(address, value);
}

}  // namespace maypole::cuda
