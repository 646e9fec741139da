// StateCalls: a rank's requests to its executor to keep, find and drop states.
//
// Purpose: the caller's thread sends a request and waits; the thread that reads
// the session's socket hands in the reply.
//
//   StateCalls calls;
//   Status s = calls.Call(request, [&](const auto& m) { Send(m); }, &found);
//   calls.OnReply(reply, std::move(descriptors));   // on another thread
//
// Thread contract: any thread may call the functions. Calls run one after the
// other. `send` is called without holding the lock that OnReply() takes.
#ifndef MAYPOLE_CLIENT_SESSION_STATE_CALLS_H_
#define MAYPOLE_CLIENT_SESSION_STATE_CALLS_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "common/status.h"
#include "common/system/fd.h"
#include "common/wire/session_messages.h"

namespace maypole {

// The executor answers at once; if it is stopped, the caller must not hang.
inline constexpr int kStateCallMs = 10000;

class StateCalls {
 public:
  // Sets the request's number, sends it and waits for the reply, at most
  // timeout_ms. Returns the reply's code and text. Fills in *found (may be
  // null) with the reply's descriptor.
  Status Call(session::StateRequest request,
              const std::function<void(const session::StateRequest&)>& send,
              Fd* found, int timeout_ms = kStateCallMs);
  // True if a call waits for this reply.
  bool OnReply(const session::StateReply& reply, std::vector<Fd> descriptors);
  // No more replies will come: ends the waiting call and all later ones with
  // this error.
  void End(const Status& why);

 private:
  std::mutex one_;  // held during a call
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t number_ = 0;  // of the last call
  bool waiting_ = false;
  Status answer_;
  Fd found_;
  Status ended_;  // not OK after End()
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_STATE_CALLS_H_
