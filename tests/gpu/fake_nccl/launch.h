// EnqueueLaunch: puts the operations of one group on their streams.
//
// Purpose: does what in NCCL a GPU's kernel does: it holds its stream until the
// other ranks have come.
//
//   CUresult error = EnqueueLaunch(context, link, rank, ranks, operations,
//                                  previous, &launched);
//
// Thread contract: any thread may call it. A stream's thread does the work.
//
// Invariants: the operations of a launch run at the same time. If the link is
// cancelled, the work ends and outputs stay as they are.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_LAUNCH_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_LAUNCH_H_

#include <memory>
#include <vector>

#include "tests/gpu/fake_nccl/communicator.h"

namespace maypole::nccl::fake {

cuda::CUresult EnqueueLaunch(cuda::CUcontext context,
                             const std::shared_ptr<Link>& link, int rank,
                             int ranks,
                             const std::vector<Operation>& operations,
                             void* previous, void** launched);

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_LAUNCH_H_
