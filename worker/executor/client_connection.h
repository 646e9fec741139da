// ClientConnection: the executor's end of one client's socket.
//
// Purpose: sends without blocking. A client that submits hundreds of new names
// in a row reads the replies only when it next moves data; messages that its
// socket does not accept meanwhile are kept here, in order, up to a limit.
//
// Thread contract: the executor's loop only. The socket is non-blocking.
#ifndef MAYPOLE_WORKER_EXECUTOR_CLIENT_CONNECTION_H_
#define MAYPOLE_WORKER_EXECUTOR_CLIENT_CONNECTION_H_

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "common/status.h"
#include "common/system/fd.h"

namespace maypole::worker {

class ClientConnection {
 public:
  ClientConnection() = default;
  ClientConnection(Fd socket, Fd process_end)
      : socket_(std::move(socket)), process_end_(std::move(process_end)) {}

  int socket() const { return socket_.get(); }
  // Readable when the client's process has ended; invalid: its pid is unknown.
  const Fd& process_end() const { return process_end_; }
  Fd TakeProcessEnd() { return std::move(process_end_); }

  // Sends the message, or keeps it with copies of its descriptors. Returns an
  // error, with the reason, if this client will never get it. A client that has
  // gone is not an error here: its connection shows as closed.
  Status Send(const void* data, size_t bytes, std::span<const int> fds = {});
  // Sends kept messages as far as the socket accepts them; errors as for Send.
  Status Flush();
  // True if messages are kept: call Flush() when the socket can be written.
  bool wants_to_write() const { return !unsent_.empty(); }

 private:
  struct Unsent {
    std::vector<char> data;
    std::vector<Fd> fds;
  };

  Status Keep(const void* data, size_t bytes, std::span<const int> fds);

  Fd socket_;
  Fd process_end_;
  std::deque<Unsent> unsent_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_CLIENT_CONNECTION_H_
