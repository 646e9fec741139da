// Communicator: what carries operations out; a node's board, or this process
// alone.
//
// Thread contract: all functions may be called by any thread.
#ifndef MAYPOLE_CLIENT_SESSION_COMMUNICATOR_H_
#define MAYPOLE_CLIENT_SESSION_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <span>

#include "client/engine/operation.h"
#include "client/memory/arena.h"
#include "common/status.h"

namespace maypole {

// A timeout of Communicator::Await(): no end; but while data moves, kCancelled
// every 0.1 s.
inline constexpr int kWaitInterruptible = -2;

class Communicator {
 public:
  virtual ~Communicator() = default;

  // Starts operations whose signatures and process sets have been checked, all
  // or none; `name` empty means unnamed (the job names it). An operation that
  // is none on tensors (Control) stands alone. Never blocks. On error nothing
  // was started.
  virtual Status Start(
      std::span<const std::shared_ptr<Operation>> operations) = 0;

  // Null: there is none of this id.
  virtual std::shared_ptr<const ProcessSet> FindSet(uint32_t id) const = 0;

  // Moves data along, without waiting for the operation, which somebody polls.
  virtual void Progress(const Operation& operation) = 0;

  // Until operation->done, at most timeout_ms (-1: no end, or
  // kWaitInterruptible). kOk then; kDeadlineExceeded, kCancelled (a signal)
  // otherwise.
  virtual Status Await(const Operation& operation, int timeout_ms) = 0;

  // Leaves; operations still pending end with an error. Further calls fail.
  virtual void Leave() = 0;

  virtual bool homogeneous() const = 0;

  // An elastic job: ranks that want to come in or out; 0: none.
  virtual uint32_t change_wanted() const { return 0; }

  // Null: the job has none.
  virtual std::shared_ptr<Arena> arena() const { return nullptr; }
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_COMMUNICATOR_H_
