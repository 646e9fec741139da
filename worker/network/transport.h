// Transport: the interface between an executor and its coordinator.
//
// Purpose: one session with the coordinator, over any number of streams. Each
// message arrives once and in order, or the session is permanently lost.
//
// Thread contract: Send() and the destructor from one thread; the callbacks
// come from other threads, one at a time, and never after the destructor has
// returned.
#ifndef MAYPOLE_WORKER_NETWORK_TRANSPORT_H_
#define MAYPOLE_WORKER_NETWORK_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"

namespace maypole::worker {

struct TransportCallbacks {
  std::function<void(proto::CoordinatorMessage)> on_message;
  // The coordinator has received all messages up to this number.
  std::function<void(uint64_t sequence)> on_acknowledged;
  // The stream has broken, and the session goes on as soon as the coordinator
  // can be reached. The status has the text for those that wait for it.
  std::function<void(absl::Status)> on_away;
  std::function<void()> on_reconnected;
  // A coordinator that knows nothing has replaced the one before. What is sent
  // before NodeState is dropped; on_acknowledged counts from 1 again.
  std::function<void()> on_replaced;
  // The session is lost; no callback follows.
  std::function<void(absl::Status)> on_lost;
};

class Transport {
 public:
  // Ends the session, so that the coordinator does not wait for a resume.
  virtual ~Transport() = default;

  // Returns the message's number; 0: it was dropped. Never blocks.
  virtual uint64_t Send(proto::ExecutorMessage message) = 0;

  // Another executor has passed on this message of the coordinator with this
  // incarnation. It goes to on_message in its turn, unless the stream has
  // brought it, too, or the coordinator has been replaced.
  virtual void TakeRelayed(const std::string& incarnation,
                           proto::CoordinatorMessage message) = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_TRANSPORT_H_
