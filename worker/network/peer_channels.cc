#include "worker/network/peer_channels.h"

#include <sys/uio.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace maypole::worker {
namespace {

constexpr size_t kHeaderBytes = 4;

uint32_t LengthAt(const char* at) {
  uint32_t length = 0;
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    length |= uint32_t{static_cast<unsigned char>(at[i])} << (8 * i);
  }
  return length;
}

std::string Framed(const proto::PeerMessage& message) {
  std::string frame(kHeaderBytes, '\0');
  message.AppendToString(&frame);
  const size_t length = frame.size() - kHeaderBytes;
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    frame[i] = static_cast<char>(length >> (8 * i));
  }
  return frame;
}

// With so few other nodes, to read from each costs no more than to ask which
// of them has sent something.
constexpr uint32_t kFewPeers = 2;

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

PeerChannels::PeerChannels(std::vector<PeerSocket> connections,
                           std::vector<std::string> names)
    : names_(std::move(names)), peers_(connections.size()) {
  for (uint32_t node = 0; node < peers_.size(); ++node) {
    if (!connections[node].valid()) continue;
    peers_[node].socket = std::move(connections[node]);
    peers_[node].watch = poller_.Watch(peers_[node].socket.fd(), node);
    others_.push_back(node);
  }
}

absl::StatusOr<std::vector<uint64_t>> PeerChannels::Ready() {
  if (others_.size() <= kFewPeers) return others_;
  const auto ready = poller_.Wait(0);
  if (!ready.ok()) return ready.status();
  return std::vector<uint64_t>(ready->begin(), ready->end());
}

void PeerChannels::Send(const std::vector<uint32_t>& nodes,
                        const proto::PeerMessage& message) {
  const std::string frame = Framed(message);
  for (const uint32_t node : nodes) {
    Peer& peer = peers_[node];
    if (!peer.socket.valid()) continue;
    const bool idle = peer.out.empty() && !peer.socket.has_unsent();
    peer.out += frame;
    if (idle) Flush(node);
    if (peer.out.size() > kMaxPeerBacklogBytes) {
      Break(node, "it does not read what is sent to it");
    }
  }
}

void PeerChannels::Flush(uint32_t node) {
  Peer& peer = peers_[node];
  size_t sent = 0;
  while (sent < peer.out.size() || peer.socket.has_unsent()) {
    const iovec rest{peer.out.data() + sent, peer.out.size() - sent};
    const ssize_t n = peer.socket.Write(&rest, 1);
    if (n < 0 && WouldBlock()) break;
    if (n < 0) return Break(node, ConnectionErrorText(errno));
    sent += static_cast<size_t>(n);
  }
  peer.out.erase(0, sent);
  peer.watch.WantWrite(!peer.out.empty() || peer.socket.has_unsent());
}

std::vector<std::pair<uint32_t, proto::PeerMessage>> PeerChannels::Receive() {
  Messages messages;
  const absl::StatusOr<std::vector<uint64_t>> ready = Ready();
  if (!ready.ok()) {
    status_.Update(ready.status());
    return messages;
  }
  for (const uint64_t node : *ready) {
    Read(static_cast<uint32_t>(node), &messages);
    const Peer& peer = peers_[node];
    if (peer.out.empty() && !peer.socket.has_unsent()) continue;
    Flush(static_cast<uint32_t>(node));
  }
  return messages;
}

void PeerChannels::Read(uint32_t node, Messages* messages) {
  char bytes[16384];
  for (Peer& peer = peers_[node]; peer.socket.valid();) {
    const iovec room{bytes, sizeof(bytes)};
    const ssize_t n = peer.socket.Read(&room, 1);
    if (n < 0 && WouldBlock()) return;
    if (n < 0) return Break(node, ConnectionErrorText(errno));
    if (n == 0) return Break(node, "closed by the other side");
    peer.in.append(bytes, static_cast<size_t>(n));
    if (!Parse(node, messages)) return Break(node, "a message is malformed");
    if (static_cast<size_t>(n) < sizeof(bytes)) return;
  }
}

bool PeerChannels::Parse(uint32_t node, Messages* messages) {
  std::string& in = peers_[node].in;
  size_t at = 0;
  while (in.size() - at >= kHeaderBytes) {
    const size_t length = LengthAt(in.data() + at);
    if (length > kMaxPeerMessageBytes) return false;
    if (in.size() - at - kHeaderBytes < length) break;
    proto::PeerMessage message;
    if (!message.ParseFromArray(in.data() + at + kHeaderBytes,
                                static_cast<int>(length))) {
      return false;
    }
    messages->emplace_back(node, std::move(message));
    at += kHeaderBytes + length;
  }
  in.erase(0, at);
  return true;
}

void PeerChannels::Break(uint32_t node, std::string_view why) {
  Peer& peer = peers_[node];
  peer.watch.Reset();
  peer.socket.Reset();
  peer.out.clear();
  status_.Update(absl::UnavailableError(absl::StrCat(
      "the connection to ", names_[node], " failed: ", std::string(why))));
}

}  // namespace maypole::worker
