// PeerSocket: a connected socket to another node, encrypted or not.
//
// Purpose: reads and writes as the kernel's calls do, so that TcpConnection and
// PeerChannels need not know whether TLS lies between them and the socket.
//
//   PeerSocket plain(std::move(fd));
//   auto sealed = PeerSocket::Encrypted(std::move(fd), key, {.calls = true});
//   while (*(events = sealed->Handshake()) != 0) ... poll for these events ...
//   ssize_t n = sealed->Write(parts, 2);   // -1 with errno, like sendmsg()
//   ssize_t m = sealed->Read(parts, 2);    // 0: the peer has closed it
//
// TLS: version 1.3 by OpenSSL, with an external pre-shared key (that of the
// connection, handshake_proof.h) and a Diffie-Hellman exchange over X25519, so
// who learns the key later cannot read what was recorded. No certificates, no
// tickets, no early data. AES-128-GCM; ChaCha20-Poly1305 if one of the ends has
// no instructions for AES. The keys change every 64 GiB.
//
// An OpenSSL object is not for two threads at once, and a TLS record may lie
// half in the socket. So a mutex guards it, and Write() encrypts into a buffer,
// which is then sent: it returns the number of plain bytes taken, and
// has_unsent() says whether encrypted ones have stayed. They go first in the
// next Write(), which may have no parts. Memory of what was written may be
// reused at once; but it counts as sent only when nothing is unsent.
//
// Read() returns fewer bytes than asked only if there are no more now. If it
// returns all that were asked for, more may lie here already, decrypted or not,
// of which the kernel does not tell: call it again.
//
// An end of the stream is not signed: a stranger may cut a connection. So
// messages have lengths, and an end within an epoch is a failure.
//
// Thread contract: one thread reads while another one writes. has_unsent() is
// for the writing thread.
#ifndef MAYPOLE_WORKER_BACKEND_PEER_SOCKET_H_
#define MAYPOLE_WORKER_BACKEND_PEER_SOCKET_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "worker/backend/handshake_proof.h"

namespace maypole::worker {

struct TlsSide {
  bool calls = false;  // of the two ends, one is the caller
  uint64_t rekey_bytes = uint64_t{64} << 30;
};

class PeerSocket {
 public:
  PeerSocket();                // none
  explicit PeerSocket(Fd fd);  // in the clear
  PeerSocket(PeerSocket&& other) noexcept;
  PeerSocket& operator=(PeerSocket&& other) noexcept;
  ~PeerSocket();

  // Makes the socket non-blocking. Handshake() has to follow.
  static absl::StatusOr<PeerSocket> Encrypted(Fd fd,
                                              const handshake::Secret& key,
                                              TlsSide side);
  // Continues the handshake. Returns the events to wait for (POLLIN, POLLOUT),
  // 0 when it is done. The error does not name the node.
  absl::StatusOr<short> Handshake();
  // "TLS_AES_128_GCM_SHA256"; after the handshake. Empty: not encrypted.
  std::string Suite() const;

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  bool encrypted() const { return tls_ != nullptr; }
  void Reset();

  // These never wait: -1 with EAGAIN. EBADMSG: what has arrived was not written
  // by the other end, or not like this.
  ssize_t Read(const iovec* parts, int count);
  ssize_t Write(const iovec* parts, int count);
  bool has_unsent() const;

 private:
  class Tls;

  Fd fd_;
  std::unique_ptr<Tls> tls_;
};

// What an error of Read() or Write() means, for messages.
std::string ConnectionErrorText(int error);

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_PEER_SOCKET_H_
