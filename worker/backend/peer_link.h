// PeerLink: sends and receives between this node and another one.
//
// Purpose: what a chunk in flight (tcp_flight.h) needs of the connections to
// one node: TcpConnection, and UcxFabric's links.
//
//   link->Receive(slot, data, bytes, {.listener = this, .tag = 1});
//   // -> this->OnEnded(1, "")
//
// A message and its receive are matched by slot, and in order within a slot.
// Both ends know the size. A message may arrive before its receive is posted.
//
// Thread contract: any thread. Listeners are called without a lock, by a thread
// of the link or by the one that posts or cancels.
#ifndef MAYPOLE_WORKER_BACKEND_PEER_LINK_H_
#define MAYPOLE_WORKER_BACKEND_PEER_LINK_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace maypole::worker {

class TransferListener {
 public:
  virtual ~TransferListener() = default;
  // A send or receive has ended; the link no longer accesses its memory.
  // `failure`: why it failed, or empty.
  virtual void OnEnded(uint64_t tag, const std::string& failure) = 0;
};

// Whom to tell of an end, and what the send or receive is called there.
struct TransferTag {
  TransferListener* listener = nullptr;
  uint64_t tag = 0;
};

class PeerLink {
 public:
  virtual ~PeerLink() = default;
  // The listener is told exactly once, perhaps before these return. Until then
  // it and the memory must stay.
  virtual void Send(uint64_t slot, const std::byte* data, uint64_t bytes,
                    TransferTag tag) = 0;
  virtual void Receive(uint64_t slot, std::byte* data, uint64_t bytes,
                       TransferTag tag) = 0;
  // Soon ends what is posted for the listener, as failures. If a message was
  // transferred in part, the link fails here.
  virtual void Cancel(const TransferListener* listener) = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_BACKEND_PEER_LINK_H_
