// The compute functions of all kernels.
#ifndef MAYPOLE_CLIENT_TENSORFLOW_KERNELS_H_
#define MAYPOLE_CLIENT_TENSORFLOW_KERNELS_H_

#include "client/tensorflow/kernel.h"
#include "client/tensorflow/tensorflow_api.h"

namespace maypole::tensorflow {

// From TensorFlow 2.13 on: ends when the operations have ended.
void ComputeAsynchronously(void* kernel, TF_OpKernelContext* context,
                           TF_AsyncOpKernelDoneCallback* done);

// Before 2.13: Submit ends at once and outputs a handle (int64, a scalar),
// which is the last input of Wait. Wait blocks its thread, so Python adds
// control dependencies that make every Submit which does not depend on a Wait
// run before it. If Wait does not run, because the step failed, the handle
// keeps its memory.
void ComputeSubmit(void* kernel, TF_OpKernelContext* context);
void ComputeWait(void* kernel, TF_OpKernelContext* context);

// This process's rank numbers and sizes: int32, a scalar.
enum class Place {
  kRank,
  kSize,
  kLocalRank,
  kLocalSize,
  kIncluded,   // 1 or 0
  kRankInSet,  // this rank's index in the process set
};
template <Place place>
void ComputePlace(void* kernel, TF_OpKernelContext* context);

}  // namespace maypole::tensorflow

#endif  // MAYPOLE_CLIENT_TENSORFLOW_KERNELS_H_
