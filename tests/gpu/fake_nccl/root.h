// The root of a communicator: through it the ranks with the same unique id find
// each other.
//
// Purpose: when all ranks have sent their hello, the process that has made the
// id tells each rank whether two of them use one GPU, and where rank 0's hub
// is.
//
//   ncclUniqueId id;
//   StartRoot(&id);
//   Fd socket = FindRoot(id);                  // in each rank
//   MeetRoot(socket.get(), hello, &welcome);   // waits for all
//
// Thread contract: any thread may call the functions. A thread of its own
// serves each id, until all ranks have been answered or the process ends.
//
// Invariants: as with NCCL, an id serves for one communicator.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_ROOT_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_ROOT_H_

#include <cstdint>
#include <string>

#include "common/gpu/cuda_types.h"
#include "common/system/fd.h"
#include "tests/gpu/fake_nccl/nccl_api.h"

namespace maypole::nccl::fake {

inline constexpr size_t kNameBytes = 64;

struct Hello {
  int32_t rank;
  int32_t ranks;
  cuda::CUuuid gpu;
  uint64_t host;         // what $NCCL_HOSTID makes of the machine
  char hub[kNameBytes];  // rank 0's; else empty
};

struct Welcome {
  ncclResult_t result;
  char text[192];  // why, if it is not ncclSuccess
  char hub[kNameBytes];
};

ncclResult_t StartRoot(ncclUniqueId* id);

// Invalid if the process that has made the id is gone, or has used it already.
Fd FindRoot(const ncclUniqueId& id);
// False if the root is gone, or the socket has been shut down.
bool MeetRoot(int socket, const Hello& hello, Welcome* welcome);

// Equal for processes that NCCL takes to be on one machine.
uint64_t HostHash();

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_ROOT_H_
