// BoardWatch: finds stragglers, frozen and blocked ranks in snapshots of the
// board, and reports stragglers and blocked ranks to the coordinator.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_LIVENESS_BOARD_WATCH_H_
#define MAYPOLE_WORKER_CORE_LIVENESS_BOARD_WATCH_H_

#include <cstdint>
#include <optional>
#include <string>

#include "proto/coordinator.pb.h"
#include "worker/core/epoch_info.h"
#include "worker/core/epoch_output.h"
#include "worker/core/liveness/blocked.h"
#include "worker/core/liveness/board_snapshot.h"
#include "worker/core/liveness/frozen.h"
#include "worker/core/liveness/local_stragglers.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

class BoardWatch {
 public:
  // All must outlive this object.
  BoardWatch(const EpochInfo& info, int64_t frozen_timeout_ms,
             const SlotTable& slots, const WaitJudge& judge,
             EpochOutput* output)
      : info_(info),
        slots_(slots),
        judge_(judge),
        output_(*output),
        local_stragglers_(info.stall_check_ms),
        frozen_(static_cast<uint32_t>(info.own_node().ranks_size()),
                frozen_timeout_ms) {}

  struct Frozen {
    uint32_t local = 0;
    std::string what;  // "has not moved for 10 s while ..."
  };
  // Returns a rank that counts as lost from now on, if there is one.
  std::optional<Frozen> OnSnapshot(int64_t now_ms,
                                   const BoardSnapshot& snapshot);
  // A mask of the local ranks whose processes the next snapshot should check
  // for being stopped.
  uint64_t suspects() const {
    return local_stragglers_.suspects() | frozen_.suspects();
  }
  // As of the last snapshot, a rank of this node was in a run with other nodes.
  bool in_run() const { return in_run_; }

  // Counts a handled message of this epoch, EpochStart and Endpoints included;
  // see proto Blocked.
  void CountHandled() { ++handled_; }
  // The next snapshot answers the request.
  void OnConfirmBlocked(uint64_t round) { confirm_round_ = round; }
  // True if a snapshot is wanted now.
  bool wants_snapshot() const { return confirm_round_ != 0; }

  // Returns which of these local ranks (a mask, not empty) gets a notice:
  // preferably one that waits, and for which no local rank waits, because it
  // prints the text at once.
  uint32_t RankToTell(uint64_t locals) const;

  // A coordinator that has replaced another gets all reports again.
  void OnCoordinatorReplaced();
  void OnRecovered();

 private:
  // A mask of the local ranks that are known to wait for others.
  uint64_t Waiting() const;
  void CheckForStragglers(int64_t now_ms, const BoardSnapshot& snapshot);
  void CheckForBlocked(const BoardSnapshot& snapshot);
  proto::Blocked BlockedMessage(bool blocked) const;
  // Adds the global ranks of a mask of local ranks.
  template <typename Field>
  void AddRanks(uint64_t locals, Field* out) const;

  const EpochInfo& info_;
  const SlotTable& slots_;
  const WaitJudge& judge_;
  EpochOutput& output_;
  LocalStragglers local_stragglers_;
  std::string late_reported_;  // digest of what was reported last
  bool in_run_ = false;
  FrozenRanks frozen_;
  BlockedRanks blocked_;
  std::string blocked_reported_;
  uint64_t confirm_round_ = 0;
  uint64_t handled_ = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LIVENESS_BOARD_WATCH_H_
