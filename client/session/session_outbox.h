// SessionOutbox: sends a rank's messages to the executor in order.
//
// Purpose: a message that the full socket does not take waits here until
// Resend(). If the socket is broken, messages wait forever: the thread that
// reads the socket notices the break.
//
// Thread contract: any thread; no function but Flush() waits.
#ifndef MAYPOLE_CLIENT_SESSION_SESSION_OUTBOX_H_
#define MAYPOLE_CLIENT_SESSION_SESSION_OUTBOX_H_

#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "client/session/rank_session.h"
#include "common/status.h"
#include "common/system/fd.h"

namespace maypole {

class SessionOutbox {
 public:
  // The session must outlive this object.
  explicit SessionOutbox(RankSession* session) : session_(session) {}

  void Send(const void* message, size_t bytes, Fd fd = Fd());
  // Sends the message if none waits and the socket takes it; otherwise returns
  // false.
  bool SendIfRoom(const void* message, size_t bytes);
  // Sends the message ahead of those that wait. kResourceExhausted: the socket
  // is full.
  Status SendNow(const void* message, size_t bytes);
  // Sends the messages that wait. kResourceExhausted: the socket is full, and
  // some are left.
  Status Resend();
  // As Resend(), but retries for up to a second: the executor reads the socket
  // soon. If the executor has gone, the messages are not needed.
  void Flush();

 private:
  struct Unsent {
    std::vector<char> message;
    Fd fd;  // invalid: it has none
  };

  Status TrySend(const void* message, size_t bytes, int fd);

  RankSession* const session_;
  std::mutex mutex_;
  std::deque<Unsent> unsent_;  // oldest first
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_SESSION_OUTBOX_H_
