// PeerChannels: short messages between the executors of a job.
//
// Purpose: carries proto::PeerMessage between the loops of two executors, over
// connections that the backend has made and authenticated. The loop itself
// reads and writes the sockets: a thread in between would cost two wake-ups for
// each message. Messages of one sender arrive in the order of Send().
//
//   PeerChannels channels(std::move(connections), node_names);
//   ... the loop watches channels.fd() ...
//   channels.Send({1, 2}, message);
//   for (auto& [node, message] : channels.Receive()) ...
//
// On the wire, a message is its length (4 bytes, little endian) and its bytes.
//
// A stream that has lost its socket (peer_stream.h) holds messages back until
// it has another one.
//
// Limits: kMaxPeerMessageBytes for a message, kMaxPeerBacklogBytes for what a
// peer has not taken yet; beyond them the connection counts as broken.
//
// Thread contract: one thread (the executor's loop).
#ifndef MAYPOLE_WORKER_NETWORK_PEER_CHANNELS_H_
#define MAYPOLE_WORKER_NETWORK_PEER_CHANNELS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/fd.h"
#include "proto/coordinator.pb.h"
#include "worker/backend/peer_stream.h"
#include "worker/executor/poller.h"

namespace maypole::worker {

inline constexpr size_t kMaxPeerMessageBytes = size_t{1} << 20;
inline constexpr size_t kMaxPeerBacklogBytes = size_t{64} << 20;

class PeerChannels {
 public:
  // A connection to each node, none (an invalid one) to this one.
  // `names`: "node n1 (host b)", for messages.
  PeerChannels(std::vector<PeerStream> connections,
               std::vector<std::string> names);

  // Can be read when Receive() or Flush() has something to do.
  int fd() const { return poller_.fd(); }

  void Send(const std::vector<uint32_t>& nodes,
            const proto::PeerMessage& message);
  // Returns what has arrived, with the node that has sent it, and sends what a
  // socket did not accept before.
  std::vector<std::pair<uint32_t, proto::PeerMessage>> Receive();

  // OK, or how a connection has broken; nothing of that node follows.
  const absl::Status& status() const { return status_; }

 private:
  struct Peer {
    PeerStream stream;
    Registration watch;  // after the stream, so that it is destroyed first
    std::string in;      // an incomplete message
    std::string out;     // what the socket has not accepted
  };
  using Messages = std::vector<std::pair<uint32_t, proto::PeerMessage>>;

  // Nodes that may have sent something, or may accept more.
  absl::StatusOr<std::vector<uint64_t>> Ready();
  void AwaitSockets(PeerStream* stream);
  // Resumes the streams that have got another socket.
  void Resume();
  void Flush(uint32_t node);
  void Read(uint32_t node, Messages* messages);
  // Takes the complete messages out of peer.in.
  bool Parse(uint32_t node, Messages* messages);
  // If the stream may get another socket, waits for it; else breaks.
  void Lose(uint32_t node, int error, std::string_view why);
  void Break(uint32_t node, std::string_view why);

  const std::vector<std::string> names_;
  Poller poller_;
  // Set by the streams' supplies, which may outlive this.
  struct Resumable {
    Fd event;
    std::atomic<bool> any{false};
  };
  std::shared_ptr<Resumable> resumable_;  // null if no stream can be resumed
  Registration resumable_watch_;
  std::vector<Peer> peers_;  // by node
  std::vector<uint64_t> others_;
  absl::Status status_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_NETWORK_PEER_CHANNELS_H_
