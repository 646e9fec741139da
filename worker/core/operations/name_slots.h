// NameSlots: gives the names of operations their slots.
//
// Purpose: answers a rank that requests a slot for a name, finds the slot of an
// operation in a coordinator's message, and recalls slots (recalls.h) when none
// is free. A request that finds no slot waits for one, for at most kSlotWaitMs
// after the last slot became free. The same holds for the coordinator's request
// that joined ranks stand in for an operation.
//
// Thread contract: not synchronized; no I/O, no clock.
//
// Errors: an error of a request goes to the rank. An error that a function
// returns means that the epoch cannot continue.
#ifndef MAYPOLE_WORKER_CORE_OPERATIONS_NAME_SLOTS_H_
#define MAYPOLE_WORKER_CORE_OPERATIONS_NAME_SLOTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/session_messages.h"
#include "proto/coordinator.pb.h"
#include "worker/core/epoch_info.h"
#include "worker/core/epoch_output.h"
#include "worker/core/limits.h"
#include "worker/core/membership.h"
#include "worker/core/operations/recalls.h"
#include "worker/core/operations/schedule.h"
#include "worker/core/operations/sets.h"
#include "worker/core/operations/slots.h"

namespace maypole::worker {

class NameSlots {
 public:
  // All must outlive this object. Slots of an active `schedule` are not
  // recalled.
  NameSlots(const EpochInfo& info, const Schedule& schedule, SetTable* sets,
            SlotTable* slots, EpochOutput* output)
      : info_(info),
        schedule_(schedule),
        sets_(*sets),
        slots_(*slots),
        output_(*output),
        recalls_(slots) {}

  // Answers at once, or when a slot becomes free, or with an error if none
  // becomes free for kSlotWaitMs.
  void OnRequest(const LocalMember& member,
                 const session::SlotRequest& request);
  absl::Status OnStandIn(const proto::StandIn& stand_in);
  // The result of FindIdleSlots.
  void OnIdleSlots(const std::vector<IdleSlot>& idle);
  absl::Status OnReturn(const LocalMember& member,
                        const session::SlotReturn& answer);
  // The result of FreeSlot: no word of the slot has a generation beyond
  // `first`.
  absl::Status OnFreed(uint32_t slot, uint32_t first);
  absl::Status OnTime(int64_t now_ms);
  // Recalls again without a pause, because more names can now give their slots
  // back.
  void RecallNow();

  // True if a rank or the coordinator waits for a slot.
  bool waits() const {
    return !waiting_.empty() || !waiting_stand_ins_.empty();
  }
  // True if the coordinator has requested an operation that joined ranks have
  // not submitted yet.
  bool WaitsForStandIn() const;

  // Returns the slot of an operation in a coordinator's message; allots one if
  // no rank of this node has used the name. Returns null if the process set is
  // gone, RESOURCE_EXHAUSTED if the table is full, and another error if the
  // operation is unknown.
  absl::StatusOr<SlotEntry*> ResolveOrAllot(uint32_t id,
                                            const proto::Identity* identity,
                                            uint32_t* slot);

  // The rank has left.
  void Forget(uint32_t local);
  // The epoch is over: answers the waiting requests of `members` with this
  // error.
  void RefuseWaiting(const absl::Status& why, const Membership& members);
  // The coordinator is away or recovering: waiting names wait longer.
  void OnCoordinatorMissing(int64_t now_ms) { freed_ms_ = now_ms; }
  // The new coordinator repeats the requests that it still needs.
  void OnCoordinatorReplaced() { waiting_stand_ins_.clear(); }

 private:
  struct WaitingRequest {
    LocalMember member;
    session::SlotRequest request;
  };

  absl::StatusOr<uint32_t> Allot(SharedSet set, Kind kind,
                                 const std::string& name);
  absl::StatusOr<uint32_t> AllotFor(const LocalMember& member,
                                    const session::SlotRequest& request,
                                    bool* negotiated);
  void Reply(const LocalMember& member, const session::SlotRequest& request,
             const absl::StatusOr<uint32_t>& slot, bool negotiated);
  // Returns false, without an answer, if there is no slot and `may_wait`.
  bool Answer(const LocalMember& member, const session::SlotRequest& request,
              bool may_wait);
  void Recall();
  bool MayRecall(uint32_t slot) const;
  void Release(const std::vector<uint32_t>& slots);
  absl::Status ServeWaiting();
  // Sends the first rank that waits for a slot a notice, which names a rank
  // that has not answered its recall.
  void ReportSilence();

  const EpochInfo& info_;
  const Schedule& schedule_;
  SetTable& sets_;
  SlotTable& slots_;
  EpochOutput& output_;
  SlotRecalls recalls_;
  // By local rank: the ranks that have requested slots.
  std::map<uint32_t, ClientId> clients_;
  std::deque<WaitingRequest> waiting_;
  std::deque<proto::StandIn> waiting_stand_ins_;
  // By slot: the last generation for which members were asked to stand in.
  std::map<uint32_t, uint32_t> wanted_;
  size_t freeing_ = 0;  // slots for which OnFreed() is outstanding
  int64_t now_ms_ = 0;
  int64_t freed_ms_ = 0;   // last slot freed, or first request began to wait
  int64_t recall_ms_ = 0;  // no recall before this time
  int64_t recall_pause_ms_ = kRecallPauseMs;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_OPERATIONS_NAME_SLOTS_H_
