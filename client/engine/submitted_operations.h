// SubmittedOperations: a rank's operations, as the progress engine sees them.
//
// Thread contract: the driver thread calls all functions.
#ifndef MAYPOLE_CLIENT_ENGINE_SUBMITTED_OPERATIONS_H_
#define MAYPOLE_CLIENT_ENGINE_SUBMITTED_OPERATIONS_H_

#include <cstdint>
#include <vector>

#include "client/engine/operation.h"
#include "common/status.h"

namespace maypole {

class SubmittedOperations {
 public:
  virtual ~SubmittedOperations() = default;
  // Returns the operation that has arrived at this generation of the slot; it
  // no longer waits for a ticket. Null if it has ended in the meantime (abort).
  virtual Operation* Claim(uint32_t slot, uint32_t generation) = 0;
  // The generation at which this rank has arrived in the slot and waits for a
  // ticket; 0 if there is none.
  virtual uint32_t WaitingGeneration(uint32_t slot) = 0;
  // Ends the operation.
  virtual void Finish(Operation* operation, Status status) = 0;
  // All operations that have arrived and wait for a ticket.
  virtual std::vector<Operation*> Waiting() = 0;
  // True if an abort came so long ago that a rank still in a run must be stuck.
  virtual bool AbortIsOverdue() = 0;
  // Makes the operation's arena tensor private to this rank, because peers may
  // still write to it.
  virtual void Detach(Operation* operation) = 0;
  // A steady clock, in nanoseconds.
  virtual int64_t Now() = 0;
  // This rank cannot continue (no memory for a result): leaves the job, so that
  // the executor ends the epoch for all ranks.
  virtual void GiveUp(Status status) = 0;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_SUBMITTED_OPERATIONS_H_
