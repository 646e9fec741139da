// FakeCommunicator: one rank of a fake NCCL communicator.
//
// Purpose: members in one or several real processes share a memfd of the
// process that has made the id. Each member has a staging area there, and sums
// the areas of all, one MiB at a time, in the order of the ranks.
//
// Thread contract: Join, Poll and AllReduce under the scheduler's mutex; Abort
// also while AllReduces run.
//
// Invariants: a rank writes chunk c (counted over the communicator's life) when
// all ranks have read chunk c - 1, and reads it when all have written it. So
// AllReduces run in the order of issue, and each rank waits for the slowest.
// The others wait for a killed rank, as with NCCL, until they abort.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_NCCL_H_
#define MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_NCCL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "worker/backend/gpu/gpu.h"
#include "worker/backend/gpu/testing/fake_operation.h"

namespace maypole::gpu {

// The page of a new communicator. The id is valid while its maker keeps the
// descriptor open.
struct FakeNcclPage {
  Fd fd;
  NcclId id;
};
absl::StatusOr<FakeNcclPage> MakeFakeNcclPage();

class FakeCommunicator : public std::enable_shared_from_this<FakeCommunicator> {
 public:
  struct Member {
    int size, rank;
    std::string device;   // UUID
    std::string host_id;  // NCCL_HOSTID, or the host's name
  };
  static absl::StatusOr<std::shared_ptr<FakeCommunicator>> Join(
      const NcclId& id, const Member& member);

  absl::StatusOr<CommunicatorState> Poll();
  MadeOperation AllReduce(const FakeMemory& memory, Address data,
                          uint64_t elements, DType dtype);
  // Ends the waits of this rank.
  void Abort() { aborted_ = true; }

 private:
  struct Page;
  struct Rank;
  class Operation;

  FakeCommunicator(Mapping mapping, int size, int rank);
  absl::Status Check() const;
  bool AllJoined() const;
  std::byte* Staging(int rank) const;

  const Mapping mapping_;
  Page* const page_;
  const int size_, rank_;
  bool ready_ = false;
  bool in_progress_ = false;  // an AllReduce has not been polled yet
  uint64_t next_chunk_ = 1;
  std::atomic<bool> aborted_ = false;
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_NCCL_H_
