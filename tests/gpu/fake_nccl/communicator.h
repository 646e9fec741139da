// Communicator: one rank of one NCCL communicator.
//
// Purpose: what batches do with a communicator, and its state.
//
//   Begin() -> Initialise(), Connect(), Launch(), Finalise() -> End(result)
//   Cancel() -> Reclaim(true)
//
// Thread contract: any thread may call Cancel(), state() and the constant
// functions. Between Begin() and End() the threads of one batch call the other
// functions, one after the other for each communicator.
//
// Invariants: all waits for other ranks end by Cancel(). Launches run one after
// the other, whatever their streams are.
#ifndef MAYPOLE_TESTS_GPU_FAKE_NCCL_COMMUNICATOR_H_
#define MAYPOLE_TESTS_GPU_FAKE_NCCL_COMMUNICATOR_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/gpu/cuda_types.h"
#include "tests/gpu/fake_nccl/link.h"
#include "tests/gpu/fake_nccl/nccl_api.h"
#include "tests/gpu/fake_nccl/wire.h"

namespace maypole::nccl::fake {

// A collective, a send or a receive, as it was called.
struct Operation {
  Call call;
  const void* from = nullptr;
  void* to = nullptr;
  CUstream stream = nullptr;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int rank, int ranks, bool blocking, cuda::CUcontext context,
               const cuda::CUuuid& gpu);
  ~Communicator();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  bool blocking() const { return blocking_; }
  bool finalised() const { return finalised_; }

  // ncclInProgress, or what the last call has led to.
  ncclResult_t state();
  // Another call has not ended.
  bool busy();
  void Begin();
  void End(ncclResult_t result);
  // A pseudo-random time, at most late= of the configuration.
  void Dawdle();

  ncclResult_t Initialise(const ncclUniqueId& id);
  // Whether Connect() would wait.
  bool MustConnect(const std::vector<Operation>& operations) const;
  // Before the first collective of a kind, waits for all ranks; before the
  // first send to a peer or receive from it, for that one.
  ncclResult_t Connect(const std::vector<Operation>& operations);
  ncclResult_t Launch(const std::vector<Operation>& operations);
  ncclResult_t Finalise();

  void Cancel();
  // What ncclCommAbort does at once: as Cancel(), on behalf of the user.
  void Abort();
  // Frees all; the communicator must be ready or cancelled. As in NCCL, the
  // destruction of one that has not been finalised waits for all ranks.
  ncclResult_t Reclaim(bool abort);

 private:
  ncclResult_t Join(const std::string& hub);
  ncclResult_t Meet(const Call& call);
  ncclResult_t WaitOfHost(uint64_t id);
  void WaitUntilCancelled();
  void CancelWaits(void (Link::*cancel)());
  bool cancelled();

  const int rank_, ranks_;
  const bool blocking_;
  const cuda::CUcontext context_;
  const cuda::CUuuid gpu_;
  bool finalised_ = false;

  std::mutex mutex_;  // guards what is below, down to `last_`
  std::condition_variable changed_;
  std::shared_ptr<Link> link_;
  Fd root_;  // valid while the ranks meet there
  ncclResult_t result_ = ncclSuccess;
  bool busy_ = false;
  bool cancelled_ = false;
  bool peer_lost_ = false;
  std::mt19937_64 random_;

  void* last_ = nullptr;  // the driver's operation that was launched last
  std::set<std::pair<Kind, int>> connected_;  // of ConnectCall()
};

}  // namespace maypole::nccl::fake

#endif  // MAYPOLE_TESTS_GPU_FAKE_NCCL_COMMUNICATOR_H_
