#include "common/wire/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace maypole {
namespace {

constexpr size_t kMaxFds = 8;
// SO_PASSRIGHTS, which headers before Linux 6.16 do not define.
constexpr int kPassRights = 83;

Status AddressOf(const std::string& path, sockaddr_un* out) {
  if (path.empty() || path.size() >= sizeof(out->sun_path)) {
    return Status(Code::kInvalidArgument,
                  "a unix socket's path must have 1 to " +
                      std::to_string(sizeof(out->sun_path) - 1) + " bytes, '" +
                      path + "' has " + std::to_string(path.size()) +
                      "; choose a shorter one");
  }
  *out = {};
  out->sun_family = AF_UNIX;
  std::memcpy(out->sun_path, path.data(), path.size());
  return Status();
}

Fd NewSocket() { return Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

// Also bounds connect(). 0: no limit.
void SetSendTimeout(int fd, int ms) {
  const timeval time{.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
}

// Closing descriptors that a client sends could block this process: a file on a
// hanging file system, a socket that lingers. Connections inherit the option.
void TakeNoDescriptors(int listener) {
  const int off = 0;
  setsockopt(listener, SOL_SOCKET, kPassRights, &off, sizeof(off));
}

// The file gets the socket's mode less the umask. chmod() of the path would not
// be safe: the owner of the directory could replace the file by a symbolic
// link.
bool BindWithMode(int fd, const sockaddr_un& address, mode_t mode) {
  if (fchmod(fd, mode) != 0) return false;
  const bool for_others = (mode & (S_IRWXG | S_IRWXO)) != 0;
  const mode_t before = for_others ? umask(0777 & ~mode) : 0;
  const bool bound = bind(fd, reinterpret_cast<const sockaddr*>(&address),
                          sizeof(address)) == 0;
  const int error = errno;
  if (for_others) umask(before);
  errno = error;
  return bound;
}

// A process that starts at a path holds this lock until it listens, so that no
// other process starts between the check for a listener and the bind. The file
// is removed while locked; so a lock on a file that is no longer at its path is
// void.
class StartLock {
 public:
  explicit StartLock(const std::string& socket) : path_(socket + ".lock") {}
  ~StartLock() {
    if (fd_.valid()) unlink(path_.c_str());
  }

  Status Take() {
    for (int waited = 0;; waited += kRetryMs) {
      bool busy = false;
      if (Status s = TryOnce(&busy); !s.ok() || !busy) return s;
      if (waited >= kPatienceMs) break;
      ::poll(nullptr, 0, kRetryMs);
    }
    return Status(Code::kUnavailable,
                  "another agent has been starting at this path for " +
                      std::to_string(kPatienceMs / 1000) + " s (it holds " +
                      path_ + "); end it");
  }

 private:
  static constexpr int kRetryMs = 1;
  static constexpr int kPatienceMs = 5000;

  Status TryOnce(bool* busy) {
    Fd fd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid())
      return ErrnoStatus(errno, "cannot start at this path: " + path_);
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        return ErrnoStatus(errno, "cannot start at this path: " + path_);
      }
      *busy = true;
      return Status();
    }
    struct stat ours, there;
    *busy = fstat(fd.get(), &ours) != 0 || lstat(path_.c_str(), &there) != 0 ||
            ours.st_ino != there.st_ino || ours.st_dev != there.st_dev;
    if (!*busy) fd_ = std::move(fd);
    return Status();
  }

  const std::string path_;
  Fd fd_;
};

// True if a process listens there; *listener says which one. Never waits:
// EAGAIN means that a listener's queue is full.
bool SomebodyListens(const sockaddr_un& address, PeerCredentials* listener) {
  const Fd probe(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0) {
    return errno == EAGAIN;
  }
  (void)PeerOf(probe.get(), listener);
  return true;
}

Status AlreadyListens(const std::string& path, const PeerCredentials& who) {
  const std::string process = who.pid > 0
                                  ? " (pid " + std::to_string(who.pid) +
                                        ", uid " + std::to_string(who.uid) + ")"
                                  : "";
  return Status(Code::kAlreadyExists,
                "another agent already listens at " + path + process +
                    "; use it, or end it, or give this one another --socket");
}

}  // namespace

Status ListenUnix(const std::string& path, mode_t mode, Fd* out) {
  sockaddr_un address;
  if (Status s = AddressOf(path, &address); !s.ok()) return s;
  StartLock lock(path);
  if (Status s = lock.Take(); !s.ok()) return s;
  PeerCredentials listener;
  if (SomebodyListens(address, &listener)) {
    return AlreadyListens(path, listener);
  }
  struct stat st;
  if (lstat(path.c_str(), &st) == 0 && S_ISSOCK(st.st_mode)) {
    unlink(path.c_str());
  }
  Fd fd = NewSocket();
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  TakeNoDescriptors(fd.get());  // before a client can connect
  if (!BindWithMode(fd.get(), address, mode) || listen(fd.get(), 128) != 0) {
    return ErrnoStatus(errno, "cannot listen at " + path);
  }
  *out = std::move(fd);
  return Status();
}

Status ConnectUnix(const std::string& path, Fd* out, int timeout_ms) {
  sockaddr_un address;
  if (Status s = AddressOf(path, &address); !s.ok()) return s;
  Fd fd = NewSocket();
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  if (timeout_ms >= 0) SetSendTimeout(fd.get(), std::max(timeout_ms, 1));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
              sizeof(address)) != 0) {
    if (errno == EAGAIN) {
      return Status(Code::kDeadlineExceeded,
                    "the process that listens at " + path +
                        " accepts no connections: its queue is full");
    }
    return ErrnoStatus(errno, "cannot connect to " + path);
  }
  if (timeout_ms >= 0) SetSendTimeout(fd.get(), 0);
  *out = std::move(fd);
  return Status();
}

Status AcceptUnix(int listener, Fd* out) {
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.valid()) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) {
      *out = Fd();
      return Status();
    }
    return ErrnoStatus(errno, "accept");
  }
  *out = std::move(fd);
  return Status();
}

Status PeerOf(int socket, PeerCredentials* out) {
  ucred cred;
  socklen_t n = sizeof(cred);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &n) != 0) {
    return ErrnoStatus(errno, "SO_PEERCRED");
  }
  *out = {cred.pid, cred.uid, cred.gid};
  return Status();
}

Status SendMessage(int socket, const void* data, size_t bytes,
                   std::span<const int> fds) {
  if (fds.size() > kMaxFds) {
    return Status(Code::kInvalidArgument, "too many descriptors");
  }
  iovec iov{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_NOSIGNAL) >= 0) return Status();
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {
      return Status(Code::kResourceExhausted, "the socket's buffer is full");
    }
    Status s = ErrnoStatus(errno, "cannot send");
    // Out of memory (ENOMEM): kResourceExhausted would make the caller wait
    // until the socket is writable, which does not help.
    if (s.code() != Code::kResourceExhausted) return s;
    return Status(Code::kUnknown, s.message());
  }
}

Status ReceiveMessage(int socket, size_t max_bytes, int timeout_ms,
                      Received* out) {
  pollfd p{socket, POLLIN, 0};
  const int ready = poll(&p, 1, timeout_ms);
  if (ready < 0) {
    if (errno == EINTR) return Status(Code::kCancelled, "interrupted");
    return ErrnoStatus(errno, "poll");
  }
  if (ready == 0) return Status(Code::kDeadlineExceeded, "no message");
  out->fds.clear();
  out->data.resize(max_bytes);
  iovec iov{out->data.data(), max_bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)];
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  // A peer that closes without having read everything resets the connection.
  // The kernel reports that once, then delivers what the peer sent before.
  if (n < 0 && errno == ECONNRESET) {
    n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  }
  if (n < 0) {
    out->data.clear();
    if (errno == EINTR) return Status(Code::kCancelled, "interrupted");
    if (errno == EAGAIN) return Status(Code::kDeadlineExceeded, "no message");
    if (errno == ECONNRESET) return Status();  // closed
    return ErrnoStatus(errno, "cannot receive");
  }
  out->data.resize(static_cast<size_t>(n));
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
      out->fds.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return Status(Code::kInvalidArgument,
                  "the peer sent a message of more than " +
                      std::to_string(max_bytes) + " bytes");
  }
  return Status();
}

void TakeDescriptors(int socket) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, kPassRights, &on, sizeof(on));
}

void CloseUnasked(std::vector<Fd> fds) {
  const linger off{};
  for (const Fd& fd : fds) {
    // Fails for descriptors that are not sockets, which is harmless.
    setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &off, sizeof(off));
  }
}

}  // namespace maypole
