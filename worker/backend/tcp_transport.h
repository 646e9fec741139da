// TcpTransport: Gloo's transport interface over connections that others have
// made.
//
// Purpose: GlooBackend uses Gloo by its unbound buffers. Gloo's own TCP
// transport makes its connections itself, with whoever comes first, and ends
// the process when it reads what it does not expect; connections that have been
// authenticated can be given to it only by reaching into its classes. So this
// is a transport of our own behind the same public interface
// (gloo/transport/context.h, pair.h, unbound_buffer.h), for what GlooBackend
// needs: sends and receives of unbound buffers, matched by slot, in order
// within one slot.
//
//   auto transport = std::make_shared<TcpTransport>(0, 2);
//   transport->Adopt(1, std::move(socket));   // connected, authenticated
//   auto buffer = transport->createUnboundBuffer(data, bytes);
//   buffer->recv(1, slot);
//   buffer->waitRecv();
//
// On the wire a message is its slot and size (16 bytes, the machine's order),
// then its bytes. A send is written at once as far as the socket takes it, and
// waits for no answer; what comes before its receive is posted is kept here, up
// to kMaxEarlyBytes of a peer: a sender is ahead by the chunks of a ring at
// most. Keeping it is what avoids deadlocks: a message that is needed may stand
// behind one whose receive is posted only after it.
//
// Failures: a connection that ends, breaks, or brings what was not asked for
// fails all that is posted on it, and every later send and receive: they throw
// std::runtime_error, which says why. Other peers' connections go on. A buffer
// may be destroyed with something posted; if part of that was carried, nothing
// can follow it: the connection has failed here, but stays open, so that the
// peer does not take this node for the one that was lost.
//
// Thread contract: as Gloo's: buffers may be used by several threads, Close()
// may be called while others wait. Adopt() once a peer. One thread of its own
// reads, and writes what sockets did not take at once. Buffers go before the
// transport.
#ifndef MAYPOLE_WORKER_BACKEND_TCP_TRANSPORT_H_
#define MAYPOLE_WORKER_BACKEND_TCP_TRANSPORT_H_

#include <gloo/transport/context.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/system/fd.h"

namespace maypole::worker {

// Of messages of one peer that nobody has asked for yet.
inline constexpr uint64_t kMaxEarlyBytes = uint64_t{1} << 30;

class TcpPair;

class TcpTransport : public gloo::transport::Context {
 public:
  TcpTransport(int self, int nodes);
  ~TcpTransport() override;

  // The connection to `node`. Throws std::runtime_error if it was closed.
  void Adopt(int node, Fd connection);
  // Ends all connections, and what waits for them.
  void Close();

  std::unique_ptr<gloo::transport::Pair>& createPair(int node) override;
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(
      void* data, size_t bytes) override;

 private:
  void Main();

  const Fd epoll_;
  const Fd stop_;                  // an eventfd
  std::vector<TcpPair*> by_node_;  // of pairs_; null: this node
  std::thread thread_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_TCP_TRANSPORT_H_
