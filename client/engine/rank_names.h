// RankNames: the names of a rank's operations, and their slots on the board.
//
// Purpose: a rank requests a slot from the executor when it first uses a name,
// and keeps it until the executor recalls it and no operation uses it. Unnamed
// operations are named by a counter.
//
//   RankName& name = names.FindOrAdd(set, kind, "loss");  // requests a slot
//   RankName* name = names.TakeRequested(reply.request);  // its answer
//   Status s = names.Allot(*name, reply);                 // name->known
//
// Thread contract: not synchronized; RankCore's mutex guards it.
//
// Invariants: a known name has a slot that no other name of this rank has. A
// pointer to a name is valid until Remove().
#ifndef MAYPOLE_CLIENT_ENGINE_RANK_NAMES_H_
#define MAYPOLE_CLIENT_ENGINE_RANK_NAMES_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/engine/operation.h"
#include "client/engine/rank_shell.h"
#include "common/board/board.h"
#include "common/status.h"
#include "common/wire/session_messages.h"

namespace maypole {

// At most one operation of a name is current; unnamed operations may queue
// behind it.
struct RankName {
  uint32_t process_set = 0;
  Kind kind = Kind::kBarrier;
  std::string name;
  bool known = false;  // the executor has allotted a slot
  bool negotiated = false;
  uint32_t slot = 0;
  uint32_t base = 0;  // generation before the name's first
  uint32_t generation = 0;
  bool waiting = false;  // current has arrived and waits for its ticket
  std::shared_ptr<Operation> current;
  std::deque<std::shared_ptr<Operation>> queue;

  bool busy() const { return current != nullptr || !queue.empty(); }
};

class RankNames {
 public:
  RankNames(const Board* board, uint32_t local_rank, ExecutorRequests* requests)
      : board_(board),
        local_rank_(local_rank),
        requests_(requests),
        by_slot_(board->config().slots, nullptr) {}

  // Null if this rank has not used the name, or has given its slot back.
  RankName* Find(uint32_t process_set, Kind kind, std::string_view name) const;
  RankName* Find(const Operation& op) const {
    return Find(op.signature.process_set, op.signature.kind, op.name);
  }
  // Requests a slot if the name is new.
  RankName& FindOrAdd(uint32_t process_set, Kind kind, std::string_view name);
  // Null if no name of this rank has the slot.
  RankName* At(uint32_t slot) const {
    return slot < by_slot_.size() ? by_slot_[slot] : nullptr;
  }

  // The name that waits for the answer to this request; null if none does.
  RankName* TakeRequested(uint32_t request);
  // Takes the executor's answer for the name. After an error the name has no
  // slot.
  Status Allot(RankName& name, const session::SlotReply& reply);
  // The name's slot, if it has one, may then go to another name.
  void Remove(const RankName& name);

  // Completes a signature whose fields depend on the rank's operations so far:
  // the name of an unnamed operation and, for a barrier, the number of unnamed
  // operations so far, which ranks compare.
  void Number(Operation& op);
  // This rank stands in for the next operation of the name, at name.generation
  // + 1. If that is unnamed, this rank's next unnamed operation must get the
  // number after it.
  void CountStandIn(const RankName& name);

  // Operations that have arrived and wait for their tickets.
  std::vector<Operation*> Waiting() const;
  // A name of the process set with operations that have not ended, or null.
  const RankName* FindBusy(uint32_t process_set) const;
  // True if an operation waits for nothing but a slot, or for the one before it
  // in its queue.
  bool AnyQueued() const;
  template <typename F>
  void ForEach(const F& f) {
    for (auto& [key, name] : names_) f(*name);
  }

 private:
  const Board* const board_;
  const uint32_t local_rank_;
  ExecutorRequests* const requests_;
  std::unordered_map<std::string, std::unique_ptr<RankName>> names_;
  std::vector<RankName*> by_slot_;
  uint32_t slots_end_ = 0;  // this rank has no name in slots from here on
  uint32_t last_request_ = 0;
  std::unordered_map<uint32_t, RankName*> by_request_;  // unanswered requests
  // Number of unnamed operations submitted, by process set and kind.
  std::map<uint32_t, std::array<uint64_t, kKinds>> unnamed_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_RANK_NAMES_H_
