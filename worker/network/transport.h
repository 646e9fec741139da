// Transport: the seam between an executor and its coordinator.
//
// Purpose: one session with the coordinator, over as many streams as it takes.
// What is sent arrives once and in order, or the session is lost for good.
//
// Thread contract: Send() and the destructor from one thread; the callbacks
// come from other threads, one at a time, and never after the destructor has
// returned.
#ifndef MAYPOLE_WORKER_NETWORK_TRANSPORT_H_
#define MAYPOLE_WORKER_NETWORK_TRANSPORT_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"

namespace maypole::worker {

struct TransportCallbacks {
  std::function<void(proto::CoordinatorMessage)> on_message;
  // All messages up to this number have been received.
  std::function<void(uint64_t sequence)> on_acknowledged;
  std::function<void()> on_reconnected;
  // Last: nothing follows.
  std::function<void(absl::Status)> on_lost;
};

class Transport {
 public:
  // Takes leave: the coordinator need not wait for a resume.
  virtual ~Transport() = default;

  // Returns the message's number. Never waits.
  virtual uint64_t Send(proto::ExecutorMessage message) = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_TRANSPORT_H_
