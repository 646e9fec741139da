// Unix SOCK_SEQPACKET sockets with descriptors (SCM_RIGHTS) and peer
// credentials.
//
// Thread contract: functions on descriptors; two threads may not receive from
// the same socket at once. ListenUnix with a mode for others than the owner
// changes the process's umask for an instant: no other thread may make files
// meanwhile.
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
  pid_t pid = 0;  // 0: the peer lives in a PID namespace we cannot see
  uid_t uid = 0;
  gid_t gid = 0;
};

// Listens at a filesystem path; mode is the socket file's, from its first
// moment; of a mode for the owner alone the umask may take something. A stale
// socket file (nobody listens) is replaced; a live one is an error that says
// who listens there. Of several that start at once exactly one listens (a file
// PATH.lock, locked and removed before this returns). Who connects cannot send
// descriptors, where the kernel can see to it (SO_PASSRIGHTS, Linux 6.16); the
// other direction is free.
Status ListenUnix(const std::string& path, mode_t mode, Fd* out);
Status ConnectUnix(const std::string& path, Fd* out);
// Accepts without blocking; an invalid *out with OK means nobody is there.
Status AcceptUnix(int listener, Fd* out);
Status PeerOf(int socket, PeerCredentials* out);

// Sends one message with up to 8 descriptors; never raises SIGPIPE.
// kUnavailable: the peer is gone; kResourceExhausted: the socket's buffer is
// full, and nothing else (non-blocking sockets only); else it cannot be sent.
Status SendMessage(int socket, const void* data, size_t bytes,
                   std::span<const int> fds = {});

struct Received {
  std::vector<char> data;  // empty: the peer has closed
  std::vector<Fd> fds;     // CLOEXEC
};
// Receives one message of at most max_bytes; a longer one is an error. Waits
// at most timeout_ms (-1: for ever): kDeadlineExceeded. EINTR: kCancelled.
Status ReceiveMessage(int socket, size_t max_bytes, int timeout_ms,
                      Received* out);

// Closes what a stranger has sent. A socket of his that lingers over unsent
// data is not waited for.
void CloseUnasked(std::vector<Fd> fds);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_WIRE_UNIX_SOCKET_H_
