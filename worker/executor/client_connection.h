// ClientConnection: the executor's end of one client's socket.
//
// Purpose: sends without waiting. A client that submits hundreds of new names
// in a row reads the replies when it next moves data; what its socket does not
// take meanwhile is kept here, in order, up to a limit.
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
  ClientConnection(Fd socket, Fd pidfd)
      : socket_(std::move(socket)), pidfd_(std::move(pidfd)) {}

  int socket() const { return socket_.get(); }
  const Fd& pidfd() const { return pidfd_; }  // invalid: the pid is not known
  Fd TakePidFd() { return std::move(pidfd_); }

  // Sends it, or keeps it with copies of its descriptors. An error: this client
  // will never get it, the message says why. A client that has gone is none: it
  // shows as a closed connection by itself.
  Status Send(const void* data, size_t bytes, std::span<const int> fds = {});
  // Sends what was kept, as far as the socket takes it; errors like Send.
  Status Flush();
  // Something is kept: call Flush() when the socket can be written.
  bool wants_to_write() const { return !unsent_.empty(); }

 private:
  struct Unsent {
    std::vector<char> data;
    std::vector<Fd> fds;
  };

  Status Keep(const void* data, size_t bytes, std::span<const int> fds);

  Fd socket_;
  Fd pidfd_;
  std::deque<Unsent> unsent_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_CLIENT_CONNECTION_H_
