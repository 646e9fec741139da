// Adasums: the Adasums that a client has started and not released.
//
// Purpose: Client's bookkeeping for Adasums: makes runs of a group's members,
// starts them together, and finds a handle's run.
//
//   Adasums adasums(communicator, rank);
//   Status s = adasums.Start(operations, completions, watch);
//   adasums.Find(operations[0]->handle)->Await(timeout_ms);
//   adasums.Release(operations[0]->handle);
//
// Thread contract: any thread may call the functions.
//
// Invariants: each handle of a Start() that succeeded has a run until its
// Release(); the members of a group that have one dtype, process set and pair
// of factors have the same one.
#ifndef MAYPOLE_CLIENT_API_ADASUMS_H_
#define MAYPOLE_CLIENT_API_ADASUMS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>

#include "client/api/adasum_run.h"
#include "client/gpu/staging.h"
#include "client/session/communicator.h"
#include "common/status.h"

namespace maypole {

class Adasums {
 public:
  // `rank`: this rank's number in the job.
  Adasums(std::shared_ptr<Communicator> communicator, int rank)
      : communicator_(std::move(communicator)), rank_(rank) {}

  // As Staging::Watch(); called for each operation that is staged.
  using Watch =
      std::function<void(const std::shared_ptr<Operation>&, Staging::OnInput)>;
  // Starts all operations or, if it returns an error, none. They must have
  // handles; unnamed ones get names.
  Status Start(std::span<const std::shared_ptr<Operation>> operations,
               const std::shared_ptr<CompletionQueue>& completions,
               const Watch& watch);
  // Null if the handle belongs to no Adasum or was released.
  std::shared_ptr<AdasumRun> Find(int64_t handle) const;
  void Release(int64_t handle);

 private:
  const std::shared_ptr<Communicator> communicator_;
  const int rank_;
  mutable std::mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<AdasumRun>> runs_;  // by handle
  // How many unnamed ones each process set has had.
  std::unordered_map<uint32_t, uint64_t> unnamed_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_API_ADASUMS_H_
