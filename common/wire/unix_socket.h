// Unix SOCK_SEQPACKET sockets that can pass descriptors (SCM_RIGHTS) and report
// the peer's credentials.
//
// Thread contract: two threads must not receive from the same socket at the
// same time. If the mode grants access to others than the owner, ListenUnix
// briefly changes the process's umask: meanwhile no other thread may create
// files.
#ifndef MAYPOLE_COMMON_WIRE_UNIX_SOCKET_H_
#define MAYPOLE_COMMON_WIRE_UNIX_SOCKET_H_

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/system/fd.h"

namespace maypole {

struct PeerCredentials {
  pid_t pid = 0;  // 0: the peer is in a PID namespace that we cannot see
  uid_t uid = 0;
  gid_t gid = 0;
};

// Listens at a filesystem path. The socket file has this mode from the moment
// it exists, less the umask if the mode is for the owner only. A stale socket
// file (no process listens) is replaced; if a process listens there, the error
// names it. If several processes start at once, exactly one of them listens (a
// file PATH.lock is locked, and removed before this returns). From Linux 6.16
// on (SO_PASSRIGHTS), clients cannot send descriptors to the listener's side.
Status ListenUnix(const std::string& path, mode_t mode, Fd* out);
// Allows the peer of this connection, which a listener has accepted, to send
// descriptors.
void TakeDescriptors(int socket);
// If the listener's queue is full (its process is stopped), waits at most
// timeout_ms (-1: no limit) for room, then returns kDeadlineExceeded.
Status ConnectUnix(const std::string& path, Fd* out, int timeout_ms = -1);
// Accepts a connection. Returns OK with an invalid *out if the listener is
// non-blocking and no connection is waiting.
Status AcceptUnix(int listener, Fd* out);
Status PeerOf(int socket, PeerCredentials* out);

// Sends one message with up to 8 descriptors; never raises SIGPIPE. Returns
// kUnavailable if the peer is gone; kResourceExhausted only if the buffer of a
// non-blocking socket is full; and other codes if the message cannot be sent.
Status SendMessage(int socket, const void* data, size_t bytes,
                   std::span<const int> fds = {});

struct Received {
  std::vector<char> data;  // empty: the peer has closed
  std::vector<Fd> fds;     // CLOEXEC
};
// Receives one message of at most max_bytes; a longer one is an error.
// Descriptors for which this process has no room (ulimit -n) are missing in
// *out, the last ones first. Returns kDeadlineExceeded after timeout_ms (-1: no
// limit), and kCancelled if a signal interrupts the wait.
Status ReceiveMessage(int socket, size_t max_bytes, int timeout_ms,
                      Received* out);

// Closes descriptors that a peer has sent unasked, without waiting for a socket
// among them that lingers over unsent data.
void CloseUnasked(std::vector<Fd> fds);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_WIRE_UNIX_SOCKET_H_
