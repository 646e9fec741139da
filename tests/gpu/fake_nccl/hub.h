// Hub: where the calls of a communicator's ranks meet.
//
// Purpose: lives in the process of rank 0. It receives each rank's call with
// its input, and answers all ranks when the last call has come.
//
//   std::string name;
//   StartHub(4, &name);   // false: no socket could be made
//
// Thread contract: any thread may call StartHub(). The hub has a thread for
// each rank, until that rank is gone or the process ends.
//
// Invariants: the n-th collective of a rank meets the n-th of every other rank.
// Collectives of the host (Kind) are counted separately from those of streams,
// because they may overtake them. A send meets a receive of its peer in order.
// If calls that meet differ, all processes print both and abort.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_HUB_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_HUB_H_

#include <string>

namespace maypole::nccl::fake {

bool StartHub(int ranks, std::string* name);

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_HUB_H_
