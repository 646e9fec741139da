// TcpTransport: Gloo's transport interface over existing connections.
//
// Purpose: GlooBackend uses Gloo's unbound buffers. Gloo's own TCP transport
// makes its connections itself, accepts any process as the peer, and ends the
// process on unexpected data; it could be given authenticated connections only
// through its private classes. So this class implements the same public
// interface (gloo/transport/context.h, pair.h, unbound_buffer.h) as far as
// GlooBackend needs it: sends and receives of unbound buffers, matched by slot,
// in order within a slot.
//
//   auto transport = std::make_shared<TcpTransport>(0, 2);
//   transport->Adopt(1, std::move(socket));   // connected, authenticated
//   auto buffer = transport->createUnboundBuffer(data, bytes);
//   buffer->recv(1, slot);
//   buffer->waitRecv();
//
// On the wire, a message is its slot and size (16 bytes, host byte order), then
// its bytes. A send is written at once as far as the socket accepts it, and
// needs no answer. A message that arrives before its receive is posted is kept
// here. Keeping it avoids deadlocks: a message that is needed may follow one
// whose receive is posted only later. Once `early_bytes` of one peer are kept,
// nothing more is read from it until some of their receives are posted; so
// `early_bytes` must be at least what may lie before a needed message. A single
// message of more bytes that no receive is posted for is an error.
//
// Failures: if a connection ends, breaks or delivers unexpected data, all sends
// and receives that are posted on it fail, and later ones throw a
// std::runtime_error that says why. Connections to other peers continue. A
// buffer may be destroyed while something is posted; if a message was
// transferred in part, the connection then fails here, but stays open, so that
// the peer does not consider this node lost.
//
// A buffer made by CreateBuffer() with a listener needs no thread that waits:
// the listener is told when a send or receive has ended (tcp_buffer.h).
//
// Thread contract: as Gloo's: buffers may be used by several threads, and
// Close() may be called while others wait. Call Adopt() once per peer. The
// loop's thread reads, and writes what sockets did not accept at once.
// Buffers must be destroyed before the transport. Transports may share a loop;
// the first that is destroyed stops it, so they must end together.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_TRANSPORT_H_
#define MAYPOLE_WORKER_BACKEND_TCP_TRANSPORT_H_

#include <gloo/transport/context.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common/system/fd.h"
#include "worker/backend/tcp_buffer.h"
#include "worker/backend/tcp_loop.h"

namespace maypole::worker {

inline constexpr uint64_t kDefaultEarlyBytes = uint64_t{1} << 30;

class TcpPair;

class TcpTransport : public gloo::transport::Context {
 public:
  TcpTransport(int self, int nodes,
               std::shared_ptr<TcpLoop> loop = std::make_shared<TcpLoop>(),
               uint64_t early_bytes = kDefaultEarlyBytes);
  ~TcpTransport() override;

  // Takes the connection to `node`. Throws std::runtime_error after Close().
  void Adopt(int node, Fd connection);
  // Ends all connections and all waits for them.
  void Close();

  std::unique_ptr<gloo::transport::Pair>& createPair(int node) override;
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(
      void* data, size_t bytes) override;
  std::unique_ptr<TcpBuffer> CreateBuffer(void* data, size_t bytes,
                                          TransferTag tag);

 private:
  const std::shared_ptr<TcpLoop> loop_;
  const uint64_t early_bytes_;
  std::vector<TcpPair*> by_node_;  // owned by pairs_; null for this node
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_TRANSPORT_H_
