// OperationTable: the operations of one epoch, and where they are present.
//
// Purpose: gives identities their ids, notes which node has which operation
// present, and validates what the ranks submitted once all nodes of its process
// set have it.
//
//   absl::StatusOr<Operation*> op = table.Resolve(message);   // may be new
//   absl::Status s = table.Note(now, node, message, *op);
//   if (table.Complete(**op)) {
//     absl::StatusOr<ReadyOperation> ready = table.Validate(**op);
//     ...
//     table.Settle(*op);       // issued or failed: its next generation may
//                              // come
//   }
//
// Errors of Resolve() and Note() mean that the message is bad (the executor is
// broken), but for kResourceExhausted of Resolve(): the table is full. An error
// of Validate() is the ranks' mismatch.
//
// A process set that has been removed is still known here: what comes late for
// it is the owner's to fail (set->removed).
//
// Thread contract: not synchronized; pure.
//
// Urgency is sticky: the greatest that any node has told, until it is settled.
//
// Invariants: ids count from 1; an operation has at most one generation pending
// per node; Operation pointers stay valid as long as the table.
#ifndef MAYPOLE_COORDINATOR_CORE_PRESENCE_H_
#define MAYPOLE_COORDINATOR_CORE_PRESENCE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/signature.h"
#include "coordinator/core/fusion.h"
#include "coordinator/core/gathering.h"
#include "coordinator/core/lateness.h"
#include "coordinator/core/process_sets.h"
#include "coordinator/core/reported.h"
#include "proto/coordinator.pb.h"

namespace maypole::coordinator {

struct Operation {
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

  // "allreduce 'layer1.weight'"
  std::string Text() const { return OperationText(identity); }
};

class OperationTable {
 public:
  // `members` and `sets` outlive the table.
  OperationTable(const std::vector<Member>* members, const ProcessSets* sets);

  absl::StatusOr<Operation*> Resolve(const proto::PresentOperation& message);
  // What was reported before; null: it is unknown (the table was full).
  absl::StatusOr<Operation*> Resolve(const proto::UrgentOperation& message);
  absl::Status Note(Time now, size_t node,
                    const proto::PresentOperation& message, Operation* op);
  // Somebody on the node waits for it. True if the generation is still pending:
  // else it was answered when this was written.
  bool NoteUrgent(size_t node, uint32_t generation, Operation* op);
  static bool Complete(const Operation& op) {
    return op.present > 0 && op.present == op.set->nodes.size();
  }
  absl::StatusOr<ReadyOperation> Validate(const Operation& op) const;
  void Settle(Operation* op);

  // The operation of an id that the table gave out.
  Operation* Find(uint32_t id) { return &operations_[id - 1]; }
  // Null: never reported.
  const Operation* Find(const proto::Identity& identity) const;

  // Present somewhere, not settled.
  std::vector<Operation*> Pending();
  std::vector<const Operation*> Pending() const;
  size_t pending() const { return pending_; }
  // Of the members, by what they have not reported yet.
  NodeLateness& lateness() { return lateness_; }

 private:
  void NoteLateness(Time now, size_t node, const Operation& op);
  std::string DescribeDisagreement(const Operation& op) const;
  // What each rank brings, by position in the set.
  absl::StatusOr<ReadyOperation> Gathered(const Operation& op,
                                          ReadyOperation ready) const;

  const std::vector<Member>& members_;
  const ProcessSets& sets_;
  std::deque<Operation> operations_;  // id - 1
  std::unordered_map<std::string, uint32_t> ids_;
  size_t pending_ = 0;
  uint64_t last_order_ = 0;
  NodeLateness lateness_;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_PRESENCE_H_
