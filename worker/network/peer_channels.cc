#include "worker/network/peer_channels.h"

#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

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

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

PeerChannels::PeerChannels(std::vector<PeerStream> connections,
                           std::vector<std::string> names)
    : names_(std::move(names)), peers_(connections.size()) {
  for (uint32_t node = 0; node < peers_.size(); ++node) {
    if (!connections[node].valid()) continue;
    peers_[node].stream = std::move(connections[node]);
    peers_[node].watch = poller_.Watch(peers_[node].stream.fd(), node);
    others_.push_back(node);
    if (peers_[node].stream.lasting()) AwaitSockets(&peers_[node].stream);
  }
}

void PeerChannels::AwaitSockets(PeerStream* stream) {
  if (resumable_ == nullptr) {
    resumable_ = std::make_shared<Resumable>();
    resumable_->event = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!resumable_->event.valid()) {
      status_ = absl::UnavailableError(
          "no file descriptor is free; raise the limit (ulimit -n)");
      return;
    }
    resumable_watch_ = poller_.Watch(resumable_->event.get(), peers_.size());
  }
  stream->OnSocket([resumable = resumable_] {
    resumable->any = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n =
        write(resumable->event.get(), &one, sizeof(one));
  });
}

absl::StatusOr<std::vector<uint64_t>> PeerChannels::Ready() {
  if (resumable_ != nullptr && resumable_->any) Resume();
  if (others_.size() <= kFewPeers) return others_;
  const auto ready = poller_.Wait(0);
  if (!ready.ok()) return ready.status();
  std::vector<uint64_t> nodes(ready->begin(), ready->end());
  std::erase(nodes, peers_.size());  // resumable_watch_
  return nodes;
}

void PeerChannels::Resume() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n =
      read(resumable_->event.get(), &count, sizeof(count));
  resumable_->any = false;
  for (const uint64_t node : others_) {
    Peer& peer = peers_[node];
    if (peer.stream.Move()) peer.watch.Reset();
    if (!peer.stream.CanResume()) continue;
    peer.watch.Reset();
    peer.stream.Resume();
    peer.watch = poller_.Watch(peer.stream.fd(), node);
  }
}

void PeerChannels::Send(const std::vector<uint32_t>& nodes,
                        const proto::PeerMessage& message) {
  const std::string frame = Framed(message);
  for (const uint32_t node : nodes) {
    Peer& peer = peers_[node];
    if (!peer.stream.valid()) continue;
    const bool idle = peer.out.empty() && !peer.stream.has_unsent();
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
  int error = 0;
  while (error == 0 && (sent < peer.out.size() || peer.stream.has_unsent())) {
    const iovec rest{peer.out.data() + sent, peer.out.size() - sent};
    const ssize_t n = peer.stream.Write(&rest, 1);
    if (n < 0) error = errno;
    if (n > 0) sent += static_cast<size_t>(n);
  }
  peer.out.erase(0, sent);
  if (error != 0 && !WouldBlock(error)) {
    return Lose(node, error, ConnectionErrorText(error));
  }
  peer.watch.WantWrite(peer.stream.can_write() &&
                       (!peer.out.empty() || peer.stream.has_unsent()));
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
    if (peer.out.empty() && !peer.stream.has_unsent()) continue;
    Flush(static_cast<uint32_t>(node));
  }
  return messages;
}

void PeerChannels::Read(uint32_t node, Messages* messages) {
  char bytes[16384];
  for (Peer& peer = peers_[node]; peer.stream.valid();) {
    const iovec room{bytes, sizeof(bytes)};
    const ssize_t n = peer.stream.Read(&room, 1);
    if (n < 0 && WouldBlock(errno)) return;
    if (n < 0) return Lose(node, errno, ConnectionErrorText(errno));
    if (n == 0) return Lose(node, 0, "closed by the other side");
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

void PeerChannels::Lose(uint32_t node, int error, std::string_view why) {
  Peer& peer = peers_[node];
  if (!peer.stream.Suspend(error)) return Break(node, why);
  peer.watch.Reset();
}

void PeerChannels::Break(uint32_t node, std::string_view why) {
  Peer& peer = peers_[node];
  peer.watch.Reset();
  peer.stream.Reset();
  peer.out.clear();
  status_.Update(absl::UnavailableError(absl::StrCat(
      "the connection to ", names_[node], " failed: ", std::string(why))));
}

}  // namespace maypole::worker
