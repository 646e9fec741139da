// OperationTable: the operations of one epoch, and on which nodes they are
// present.
//
// Purpose: assigns ids to the operations' identities, notes on which nodes an
// operation is present and, when it is present on all nodes of its process set,
// validates what the ranks submitted.
//
//   // Adds a new operation if needed; null for an id that was forgotten.
//   absl::StatusOr<NegotiatedOperation*> op = table.Resolve(message);
//   absl::Status s = table.Note(now, node, message, *op);
//   if (table.Complete(**op)) {
//     absl::StatusOr<ReadyOperation> ready = table.Validate(**op);
//     ...
//     table.Settle(*op);  // issued or failed: ready for the next generation
//   }
//
// An error of Resolve() or Note() means that the message is bad, so the
// executor is broken; except kResourceExhausted of Resolve(): the table is full
// of pending operations. An error of Validate() is a mismatch between ranks.
//
// When a new name finds no room, or a node requests it, the names that have
// been unused for longest are forgotten. The owner tells all nodes of their
// sets (TakeForgotten), which then count the name's generations from 1 again. A
// report that meanwhile uses the old id is dropped; the node reports the
// operation again by its identity.
//
// A process set that has been removed is still known here: the owner must fail
// operations that arrive for it (set->removed).
//
// Urgency is sticky: an operation has the greatest urgency that any node has
// reported, until it is settled.
//
// Thread contract: not synchronized; pure.
//
// Invariants: no id is assigned twice (there are 2^32). An operation has at
// most one pending generation per node, and is not forgotten while it has one.
// NegotiatedOperation pointers are valid as long as the table, and refer to the
// same operation until it is forgotten.
#ifndef MAYPOLE_COORDINATOR_CORE_ORDERING_PRESENCE_H_
#define MAYPOLE_COORDINATOR_CORE_ORDERING_PRESENCE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/signature.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership/gathering.h"
#include "coordinator/core/membership/process_sets.h"
#include "coordinator/core/ordering/fusion.h"
#include "coordinator/core/ordering/reported.h"
#include "coordinator/core/ordering/straggler_time.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

struct NegotiatedOperation {
  uint32_t id = 0;
  proto::Identity identity;
  const RankSet* set = nullptr;
  bool told = false;  // every node of the set knows the id
  Time first_present{};
  uint64_t order = 0;  // position of the report of the set's first node
  Urgency urgency = Urgency::kNone;
  size_t present = 0;               // number of nodes
  std::vector<NodePresence> nodes;  // empty while present on no node
  // The signature of nodes without NodePresence::details.
  std::optional<Signature> common;
  std::optional<Signature> last;  // of the last run
  uint32_t settled = 0;           // the last settled generation
  bool scheduled = false;         // if true, it is not forgotten
  uint64_t used = 0;              // greater means used later

  // "allreduce 'layer1.weight'"
  std::string Text() const { return OperationText(identity); }
  bool PresentOn(size_t node) const {
    return present > 0 && nodes[node].present;
  }
  // What the node's ranks have submitted; empty if it is not present there.
  std::vector<NodePresence::Group> GroupsOf(size_t node) const;
};

class OperationTable {
 public:
  // `members` and `sets` must outlive the table. limit: at most kMaxOperations.
  OperationTable(const std::vector<NodeMember>* members,
                 const ProcessSets* sets, size_t limit = kMaxOperations);

  absl::StatusOr<NegotiatedOperation*> Resolve(
      const proto::PresentOperation& message);
  // Finds an operation that was reported before; null if it is unknown (the
  // table was full).
  absl::StatusOr<NegotiatedOperation*> Resolve(
      const proto::UrgentOperation& message);
  absl::Status Note(Time now, size_t node,
                    const proto::PresentOperation& message,
                    NegotiatedOperation* op);
  // A rank of the node waits for the operation. False if this generation is no
  // longer pending: the answer and this message have crossed.
  bool NoteUrgent(size_t node, uint32_t generation, NegotiatedOperation* op);
  static bool Complete(const NegotiatedOperation& op) {
    return op.present > 0 && op.present == op.set->nodes.size();
  }
  absl::StatusOr<ReadyOperation> Validate(const NegotiatedOperation& op) const;
  void Settle(NegotiatedOperation* op);
  // Forgets on which nodes the operation is present; they report it again, or
  // execute it without the coordinator.
  void Drop(NegotiatedOperation* op);
  // Forgets these names at the node's request, except pending ones.
  absl::Status Retire(size_t node, const proto::RetireNames& message);
  // Names that have been forgotten since the last call of TakeForgotten().
  struct Forgotten {
    uint32_t id = 0;
    const RankSet* set = nullptr;
  };
  std::vector<Forgotten> TakeForgotten() {
    return std::exchange(forgotten_, {});
  }

  // The operation of an id that the table has assigned and not forgotten.
  NegotiatedOperation* Find(uint32_t id) { return &operations_[PlaceOf(id)]; }
  // Null if the operation is unknown.
  const NegotiatedOperation* Find(const proto::Identity& identity) const;

  // Operations that are present on some node and not settled.
  std::vector<NegotiatedOperation*> Pending();
  std::vector<const NegotiatedOperation*> Pending() const;
  size_t pending() const { return pending_; }
  // How long others have waited for each member's reports.
  StragglerTime& straggler_time() { return straggler_time_; }

 private:
  // Null if the id has been forgotten.
  absl::StatusOr<NegotiatedOperation*> FindGiven(uint32_t id);
  NegotiatedOperation* NewPlace();
  void ForgetOldest();
  void Forget(NegotiatedOperation* op);
  void NoteStragglerTime(Time now, size_t node, const NegotiatedOperation& op);
  std::string DescribeDisagreement(const NegotiatedOperation& op) const;
  // Adds what differs between the ranks' inputs (first dimensions, splits), by
  // position in the set.
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
