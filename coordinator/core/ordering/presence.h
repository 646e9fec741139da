// OperationTable: the operations of one epoch, and where they are present.
//
// Purpose: gives identities their ids, notes which node has which operation
// present, and validates what the ranks submitted once all nodes of its process
// set have it.
//
//   absl::StatusOr<NegotiatedOperation*> op = table.Resolve(message); // may be
//   new;
//                            // null: by an id that has been forgotten
//   absl::Status s = table.Note(now, node, message, *op);
//   if (table.Complete(**op)) {
//     absl::StatusOr<ReadyOperation> ready = table.Validate(**op);
//     ...
//     table.Settle(*op);       // issued or failed: its next generation may
//                              // come
//   }
//
// Errors of Resolve() and Note() mean that the message is bad (the executor is
// broken), but for kResourceExhausted of Resolve(): the table is full of what
// is pending. An error of Validate() is the ranks' mismatch.
//
// Names that have not been used for longest are forgotten when a new one finds
// no place, or when a node asks for it. The owner tells all nodes of their sets
// (TakeForgotten), which count the name from 1 again; what they report by the
// old id meanwhile is dropped, and comes again by identity.
//
// A process set that has been removed is still known here: what comes late for
// it is the owner's to fail (set->removed).
//
// Thread contract: not synchronized; pure.
//
// Urgency is sticky: the greatest that any node has told, until it is settled.
//
// Invariants: no id is given twice (of four thousand million); an operation has
// at most one generation pending per node, and is not forgotten while it has
// one; NegotiatedOperation pointers stay valid as long as the table, and mean
// the same operation until it is forgotten.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_PRESENCE_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_PRESENCE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/signature.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/liveness/straggler_time.h"
#include "coordinator/core/membership/gathering.h"
#include "coordinator/core/membership/process_sets.h"
#include "coordinator/core/ordering/fusion.h"
#include "coordinator/core/ordering/reported.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

struct NegotiatedOperation {
  uint32_t id = 0;
  proto::Identity identity;
  const RankSet* set = nullptr;
  bool told = false;  // every node of the set has been told the id
  Time first_present{};
  uint64_t order = 0;  // of the report of the set's first node
  Urgency urgency = Urgency::kNone;
  size_t present = 0;               // nodes
  std::vector<NodePresence> nodes;  // empty while present on none
  uint32_t settled = 0;             // the last generation that was
  uint64_t used = 0;                // greater: later

  // "allreduce 'layer1.weight'"
  std::string Text() const { return OperationText(identity); }
};

class OperationTable {
 public:
  // `members` and `sets` outlive the table. limit: at most kMaxOperations.
  OperationTable(const std::vector<NodeMember>* members,
                 const ProcessSets* sets, size_t limit = kMaxOperations);

  absl::StatusOr<NegotiatedOperation*> Resolve(
      const proto::PresentOperation& message);
  // What was reported before; null: it is unknown (the table was full).
  absl::StatusOr<NegotiatedOperation*> Resolve(
      const proto::UrgentOperation& message);
  absl::Status Note(Time now, size_t node,
                    const proto::PresentOperation& message,
                    NegotiatedOperation* op);
  // Somebody on the node waits for it. True if the generation is still pending:
  // else it was answered when this was written.
  bool NoteUrgent(size_t node, uint32_t generation, NegotiatedOperation* op);
  static bool Complete(const NegotiatedOperation& op) {
    return op.present > 0 && op.present == op.set->nodes.size();
  }
  absl::StatusOr<ReadyOperation> Validate(const NegotiatedOperation& op) const;
  void Settle(NegotiatedOperation* op);
  // The node wants these names to be forgotten: those that are not pending are.
  absl::Status Retire(size_t node, const proto::RetireNames& message);
  // Those that have been forgotten since the last call.
  struct Forgotten {
    uint32_t id = 0;
    const RankSet* set = nullptr;
  };
  std::vector<Forgotten> TakeForgotten() {
    return std::exchange(forgotten_, {});
  }

  // The operation of an id that the table gave out and has not forgotten.
  NegotiatedOperation* Find(uint32_t id) { return &operations_[PlaceOf(id)]; }
  // Null: never reported.
  const NegotiatedOperation* Find(const proto::Identity& identity) const;

  // Present somewhere, not settled.
  std::vector<NegotiatedOperation*> Pending();
  std::vector<const NegotiatedOperation*> Pending() const;
  size_t pending() const { return pending_; }
  // Of the members, by what they have not reported yet.
  StragglerTime& straggler_time() { return straggler_time_; }

 private:
  // Null: it has been forgotten.
  absl::StatusOr<NegotiatedOperation*> FindGiven(uint32_t id);
  NegotiatedOperation* NewPlace();
  void ForgetOldest();
  void Forget(NegotiatedOperation* op);
  void NoteStragglerTime(Time now, size_t node, const NegotiatedOperation& op);
  std::string DescribeDisagreement(const NegotiatedOperation& op) const;
  // What each rank brings, by position in the set.
  absl::StatusOr<ReadyOperation> Gathered(const NegotiatedOperation& op,
                                          ReadyOperation ready) const;

  const std::vector<NodeMember>& members_;
  const ProcessSets& sets_;
  const size_t limit_;
  std::deque<NegotiatedOperation> operations_;  // by PlaceOf(id)
  std::vector<NegotiatedOperation*> free_;      // of operations_
  std::vector<Forgotten> forgotten_;
  uint64_t uses_ = 0;
  std::unordered_map<std::string, uint32_t> ids_;
  size_t pending_ = 0;
  uint64_t last_order_ = 0;
  StragglerTime straggler_time_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_ORDERING_PRESENCE_H_
