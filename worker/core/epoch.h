// Epoch: a running epoch on this node, from Welcome to its end.
//
// Purpose: slots, presence and runs put together: what ranks announce goes to
// the coordinator, what the coordinator orders goes to the board. With one node
// the ranks need nobody for that, and only slots and departures remain.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Invariants: after an error of any event the epoch cannot go on; the core
// aborts it with that text.
#ifndef MAYPOLE_WORKER_CORE_EPOCH_H_
#define MAYPOLE_WORKER_CORE_EPOCH_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/session.h"
#include "proto/coordinator.pb.h"
#include "worker/core/actions.h"
#include "worker/core/presence.h"
#include "worker/core/runs.h"
#include "worker/core/slots.h"

namespace maypole::worker {

// What the shell has found on the board: every local rank is at `generation`
// of the slot. Copied, not yet judged.
struct SlotNews {
  uint32_t slot = 0;
  uint32_t generation = 0;
  std::vector<Signature> signatures;  // by local rank
  Urgency urgency = Urgency::kNone;
};

struct EpochInfo {
  uint64_t epoch = 0;
  int size = 1;
  uint32_t node_index = 0;
  std::vector<proto::NodeInfo> nodes;

  bool several_nodes() const { return nodes.size() > 1; }
  std::string NodeText(uint32_t node) const;  // "node n1 (host b)"
};

// Checks what the coordinator says against the ranks of this node.
absl::StatusOr<EpochInfo> ReadEpochStart(const proto::EpochStart& start,
                                         const std::vector<int>& local_ranks);

class Epoch {
 public:
  Epoch(EpochInfo info, uint32_t slots, uint32_t records,
        std::vector<Action>* actions);

  const EpochInfo& info() const { return info_; }

  void OnSlotRequest(ClientId client, const session::SlotRequest& request);
  absl::Status OnNews(const SlotNews& news);
  void OnPresenceAcknowledged();
  absl::Status OnExecute(const proto::Execute& execute);
  absl::Status OnOperationFailed(const proto::OperationFailed& failed);
  void OnRunFree(uint32_t record);
  // local_rank -1: a rank of another node. The first text counts.
  void OnRankLeft(int rank, int local_rank, const std::string& text);

  bool HasLeft(int rank) const { return left_.contains(rank); }
  bool AllHaveLeft() const {
    return left_.size() == static_cast<size_t>(info_.size);
  }

 private:
  absl::StatusOr<uint32_t> Allot(uint32_t process_set, Kind kind,
                                 const std::string& name);
  absl::Status CheckNews(const SlotNews& news, const SlotEntry& entry) const;
  // News of what was reported before: somebody waits for it now.
  void OnUrgent(Urgency urgency, SlotEntry* entry);
  void SendPresence();
  void IssueRuns();

  const EpochInfo info_;
  std::vector<Action>* const actions_;
  SlotTable slots_;
  PresenceBatch presence_;
  RunQueue runs_;
  std::set<int> left_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_EPOCH_H_
