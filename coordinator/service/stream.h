// Stream: the sending half of an executor's stream, as the Hub sees it.
//
// Purpose: the core must never wait for a peer's network, and what it decides
// under a job's lock must not be written under that lock. So messages are
// queued, and written after the lock is released.
//
//   stream->Push(message);    // under the job's lock; keeps the core's order
//   ...
//   stream->Flush();          // without it
//
// Thread contract: any thread may call any method. None of them waits.
#ifndef MAYPOLE_COORDINATOR_SERVICE_STREAM_H_
#define MAYPOLE_COORDINATOR_SERVICE_STREAM_H_

#include "absl/status/status.h"
#include "coordinator/core/outgoing.h"

namespace maypole::coordinator {

class Stream {
 public:
  virtual ~Stream() = default;
  virtual void Push(Outgoing message) = 0;
  // Ends the stream with this status after writing all pushed messages.
  // Messages pushed later are dropped.
  virtual void Close(absl::Status status) = 0;
  // Starts to write what was pushed, and to end the stream if it was closed.
  virtual void Flush() = 0;
};

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_SERVICE_STREAM_H_
