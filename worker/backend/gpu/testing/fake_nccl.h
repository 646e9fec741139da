// FakeCommunicator: one rank of a fake NCCL communicator.
//
// Purpose: members of one or several real processes meet at a page that the
// maker of the id holds in a memfd, and sum through a piece of it that each has
// for itself, a MiB at a time, in the order of ranks.
//
// Thread contract: Join, Poll and AllReduce under the scheduler's mutex; Abort
// also beside the AllReduces that run.
//
// Invariants: chunk c of a communicator's life is put down by a rank when all
// have read c - 1, read when all have put it down; so AllReduces run in the
// order in which they were issued, and a rank waits for the slowest. Whoever is
// killed is waited for, as NCCL would, until the waiting abort.
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

// The page of a new communicator; the id is good while its maker keeps the
// descriptor.
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
  // What waits here is given up.
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
  bool in_progress_ = false;  // an AllReduce that was not polled yet
  uint64_t next_chunk_ = 1;
  std::atomic<bool> aborted_ = false;
};

}  // namespace maypole::gpu

#endif  // MAYPOLE_WORKER_BACKEND_GPU_TESTING_FAKE_NCCL_H_
