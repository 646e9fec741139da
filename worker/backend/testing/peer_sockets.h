// Helpers for tests: both ends of a connection, in the clear or encrypted.
#ifndef MAYPOLE_WORKER_BACKEND_TESTING_PEER_SOCKETS_H_
#define MAYPOLE_WORKER_BACKEND_TESTING_PEER_SOCKETS_H_

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <utility>

#include "worker/backend/peer_socket.h"

namespace maypole::worker {

inline std::pair<Fd, Fd> SocketPair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

using PeerSockets = std::pair<PeerSocket, PeerSocket>;

// Makes the handshake of two ends that hang together, as far as it goes.
inline absl::Status Shake(PeerSocket& one, PeerSocket& other) {
  for (int step = 0; step < 10; ++step) {
    const absl::StatusOr<short> a = one.Handshake();
    const absl::StatusOr<short> b = other.Handshake();
    if (!a.ok()) return a.status();
    if (!b.ok()) return b.status();
    if (*a == 0 && *b == 0) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the handshake does not end");
}

// Ends with a key of these bytes each; the first one is the caller. No
// handshake yet.
inline PeerSockets UnshakenSockets(Fd one, Fd other, unsigned char key = 1,
                                   unsigned char other_key = 1,
                                   uint64_t rekey_bytes = uint64_t{1} << 36) {
  handshake::Secret keys[2];
  keys[0].fill(key);
  keys[1].fill(other_key);
  auto a = PeerSocket::Encrypted(std::move(one), keys[0], {true, rekey_bytes});
  auto b =
      PeerSocket::Encrypted(std::move(other), keys[1], {false, rekey_bytes});
  EXPECT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  return {*std::move(a), *std::move(b)};
}

inline PeerSockets ConnectedSockets(bool encrypted) {
  auto [one, other] = SocketPair();
  if (!encrypted) {
    return {PeerSocket(std::move(one)), PeerSocket(std::move(other))};
  }
  PeerSockets ends = UnshakenSockets(std::move(one), std::move(other));
  const absl::Status s = Shake(ends.first, ends.second);
  EXPECT_TRUE(s.ok()) << s;
  return ends;
}

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TESTING_PEER_SOCKETS_H_
