#include "worker/backend/authenticated_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "worker/backend/handshake_io.h"

namespace maypole::worker {
namespace {

constexpr int kBacklog = 128;
constexpr std::chrono::milliseconds kPause(20);

constexpr char kChangedOffers[] =
    "what one of the two nodes says about encryption was changed on its way "
    "through the coordinator, by somebody who wants to read along; nothing was "
    "sent. Use TLS between coordinator and agents (--tls_ca, --tls_cert, "
    "--tls_key)";

using handshake::Role;

// Why two nodes do not fit together; empty if they do.
std::string Misfit(EncryptionMode own, EncryptionMode peer) {
  if (own == EncryptionMode::kRequire && peer == EncryptionMode::kOff) {
    return "it does not encrypt, which this node requires; start its agent "
           "with --network_encryption=on";
  }
  if (own == EncryptionMode::kOff && peer == EncryptionMode::kRequire) {
    return "it requires encryption, and this node does not encrypt; start this "
           "node's agent with --network_encryption=on";
  }
  return "";
}

// That of a connection, over the n-th network from its own.
const handshake::Endpoint& At(const std::vector<handshake::Endpoint>& endpoints,
                              uint32_t connection, uint32_t network = 0) {
  return endpoints[(connection / 2 + network) % endpoints.size()];
}

}  // namespace

AuthenticatedListener::AuthenticatedListener(
    AuthenticatedListenerOptions options, std::vector<Fd> listeners,
    std::vector<handshake::Endpoint> own)
    : options_(std::move(options)),
      own_(std::move(own)),
      peers_(options_.nodes),
      listeners_(std::move(listeners)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (Peer& peer : peers_) peer.ours = handshake::NewSecret();
}

AuthenticatedListener::~AuthenticatedListener() {
  Close();
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::unique_ptr<AuthenticatedListener>>
AuthenticatedListener::Open(AuthenticatedListenerOptions options) {
  if (options.hosts.empty()) return absl::UnavailableError("no address");
  std::vector<Fd> listeners;
  std::vector<handshake::Endpoint> own;
  for (const std::string& host : options.hosts) {
    absl::StatusOr<Fd> socket = handshake::Listen(host, kBacklog);
    if (!socket.ok()) return socket.status();
    own.push_back(handshake::LocalEndpoint(socket->get()));
    listeners.push_back(*std::move(socket));
  }
  std::unique_ptr<AuthenticatedListener> listener(new AuthenticatedListener(
      std::move(options), std::move(listeners), std::move(own)));
  // Without it, the thread could not be woken and ended.
  if (!listener->wake_.valid()) {
    return absl::UnavailableError(
        "no file descriptor is free; raise the limit (ulimit -n)");
  }
  return listener;
}

std::string AuthenticatedListener::AddressFor(uint32_t node) const {
  return handshake::WriteOffer({options_.connections, options_.encryption,
                                options_.ucx, peers_[node].ours, own_});
}

std::unique_ptr<AuthenticatedListener::BadOffer>
AuthenticatedListener::SetPeers(const std::vector<std::string>& offers) {
  for (uint32_t i = 0; i < options_.nodes; ++i) {
    if (i == options_.self) continue;
    handshake::Offer offer;
    if (!handshake::ReadOffer(offers[i], &offer)) {
      return std::make_unique<BadOffer>(BadOffer{
          i, absl::StrCat("its address is invalid: it has ", offers[i].size(),
                          " bytes and is no IP address "
                          "with a port and a secret")});
    }
    if (offer.connections != options_.connections) {
      return std::make_unique<BadOffer>(BadOffer{
          i, absl::StrCat(
                 "it offers ", offer.connections, " connections instead of ",
                 options_.connections,
                 "; --network_connections, and the number of addresses of "
                 "--network (maypolerun --network-interfaces), must be the "
                 "same on all nodes")});
    }
    if (std::string why = Misfit(options_.encryption, offer.encryption);
        !why.empty()) {
      return std::make_unique<BadOffer>(BadOffer{i, std::move(why)});
    }
    Peer& peer = peers_[i];
    peer.encryption = offer.encryption;
    peer.ucx = offer.ucx;
    peer.endpoints = offer.endpoints;
    peer.key = i < options_.self
                   ? handshake::KeyOf(offer.secret, peer.ours, options_.epoch)
                   : handshake::KeyOf(peer.ours, offer.secret, options_.epoch);
  }
  std::lock_guard lock(mutex_);
  if (!closed_) thread_ = std::thread([this] { AcceptHandshakes(); });
  return nullptr;
}

void AuthenticatedListener::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
  if (calling_ >= 0) shutdown(calling_, SHUT_RDWR);
  changed_.notify_all();
}

const std::string& AuthenticatedListener::HostOf(uint32_t connection) const {
  return At(own_, connection).host;
}

bool AuthenticatedListener::Encrypts(uint32_t node) const {
  return options_.encryption != EncryptionMode::kOff &&
         peers_[node].encryption != EncryptionMode::kOff;
}

absl::StatusOr<Authenticated> AuthenticatedListener::Connection(
    uint32_t node, uint32_t connection, Clock::time_point deadline) {
  return node < options_.self ? Call(node, connection, deadline)
                              : AwaitCall(node, connection, deadline);
}

absl::StatusOr<Authenticated> AuthenticatedListener::AwaitCall(
    uint32_t node, uint32_t connection, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const auto there = [&] {
    return closed_ || changed_offers_.contains(node) ||
           authenticated_.contains({node, connection});
  };
  const bool came = changed_.wait_until(lock, deadline, there);
  if (closed_) return absl::AbortedError("closed");
  if (changed_offers_.contains(node)) {
    return absl::PermissionDeniedError(kChangedOffers);
  }
  if (!came) {
    const handshake::Endpoint& own = At(own_, connection);
    return absl::UnavailableError(absl::StrCat("it has not connected to ",
                                               JoinHostPort(own.host, own.port),
                                               " in time"));
  }
  return std::move(authenticated_.extract({node, connection}).mapped());
}

// --- Connecting --------------------------------------------------------------

bool AuthenticatedListener::Pause(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return closed_; });
}

absl::StatusOr<Authenticated> AuthenticatedListener::Call(
    uint32_t node, uint32_t connection, Clock::time_point deadline) {
  const auto networks = static_cast<uint32_t>(own_.size());
  absl::Status first;
  for (uint32_t network = 0;;) {
    // A network that answers nothing must leave time for the others.
    const auto now = Clock::now();
    const auto until = now + (deadline - now) / (networks - network);
    absl::StatusOr<Authenticated> called =
        CallOnce(node, connection, network, until);
    if (called.ok()) return called;
    // The peer closed the connection: its listener had too many pending ones.
    const bool again = absl::IsResourceExhausted(called.status());
    if (!again && !absl::IsUnavailable(called.status())) return called;
    const auto why = absl::UnavailableError(called.status().message());
    if (!again) first.Update(why);
    if (!again && ++network == networks) return first;
    if (Clock::now() >= deadline) return first.ok() ? why : first;
    if (!Pause(kPause)) return absl::AbortedError("closed");
  }
}

void AuthenticatedListener::SetOnCall(OnCall on_call) {
  decltype(authenticated_) before;
  {
    std::lock_guard lock(mutex_);
    on_call_ = on_call;
    before.swap(authenticated_);
  }
  for (auto& [id, met] : before) on_call(id.first, id.second, std::move(met));
}

absl::StatusOr<Authenticated> AuthenticatedListener::CallOnce(
    uint32_t node, uint32_t connection, uint32_t network,
    Clock::time_point deadline) {
  const Peer& peer = peers_[node];
  const handshake::Endpoint& to = At(peer.endpoints, connection, network);
  const std::string where = JoinHostPort(to.host, to.port);
  absl::StatusOr<Fd> fd = handshake::StartCall(
      to, own_.size() == 1 ? "" : At(own_, connection, network).host);
  if (!fd.ok()) return fd.status();
  {
    std::lock_guard lock(mutex_);
    if (closed_) return absl::AbortedError("closed");
    calling_ = fd->get();
  }
  handshake::Hello hello;
  hello.from = options_.self;
  hello.to = node;
  hello.connection = connection;
  hello.caller = options_.encryption;
  hello.listener = peer.encryption;
  hello.challenge = handshake::NewSecret();
  handshake::Answer answer;
  char welcome = 0;
  const auto until = std::min(deadline, Clock::now() + kHandshakeTimeout);
  absl::Status s = handshake::FinishCall(fd->get(), deadline);
  const bool reached = s.ok();
  bool impostor = false;
  bool other_offers = false;
  if (s.ok()) s = handshake::WriteAll(fd->get(), &hello, sizeof(hello), until);
  if (s.ok()) s = handshake::ReadAll(fd->get(), &answer, sizeof(answer), until);
  const auto prove = [&](Role role) {
    return handshake::Prove(peer.key, role, hello, answer.challenge);
  };
  if (s.ok()) {
    other_offers =
        handshake::Same(answer.proof, prove(Role::kListenerOfOtherOffers));
    impostor =
        !other_offers && !handshake::Same(answer.proof, prove(Role::kListener));
  }
  if (s.ok() && !impostor) {
    const handshake::Proof proof =
        prove(other_offers ? Role::kCallerOfOtherOffers : Role::kCaller);
    s = handshake::WriteAll(fd->get(), &proof, sizeof(proof), until);
  }
  if (s.ok() && !impostor && !other_offers) {
    s = handshake::ReadAll(fd->get(), &welcome, 1, until);
  }
  std::lock_guard lock(mutex_);
  calling_ = -1;
  if (closed_) return absl::AbortedError("closed");
  if (impostor) {
    return absl::PermissionDeniedError(
        absl::StrCat(where, " was answered by a process outside the job"));
  }
  if (other_offers) return absl::PermissionDeniedError(kChangedOffers);
  if (s.ok()) return Authenticated{*std::move(fd), prove(Role::kTls)};
  const std::string text = absl::StrCat(where, ": ", std::string(s.message()));
  return reached ? absl::ResourceExhaustedError(text)
                 : absl::UnavailableError(text);
}

bool AuthenticatedListener::Reaches(uint32_t node, uint32_t connection,
                                    Clock::time_point deadline) {
  const absl::StatusOr<Fd> fd = handshake::StartCall(
      At(peers_[node].endpoints, connection, 0),
      own_.size() == 1 ? "" : At(own_, connection, 0).host);
  if (!fd.ok()) return false;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    calling_ = fd->get();
  }
  const absl::Status s = handshake::FinishCall(fd->get(), deadline);
  std::lock_guard lock(mutex_);
  calling_ = -1;
  return s.ok();
}

// --- Accepting ---------------------------------------------------------------

void AuthenticatedListener::AcceptHandshakes() {
  for (;;) {
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
    for (const Fd& l : listeners_) fds.push_back({l.get(), POLLIN, 0});
    for (const PendingHandshake& v : pending_) {
      fds.push_back({v.socket.get(), POLLIN, 0});
    }
    const int wait =
        pending_.empty()
            ? -1
            : static_cast<int>(
                  std::chrono::milliseconds(kHandshakeTimeout).count());
    poll(fds.data(), fds.size(), wait);
    {
      std::lock_guard lock(mutex_);
      if (closed_) break;
    }
    const auto now = Clock::now();
    size_t i = 1 + listeners_.size();
    for (auto v = pending_.begin(); v != pending_.end(); ++i) {
      const bool stays = now - v->since < kHandshakeTimeout &&
                         (fds[i].revents == 0 || Hear(*v)) && v->socket.valid();
      v = stays ? std::next(v) : pending_.erase(v);
    }
    for (size_t l = 0; l < listeners_.size(); ++l) {
      if (fds[1 + l].revents != 0) Accept(listeners_[l].get());
    }
  }
  pending_.clear();
  listeners_.clear();
}

void AuthenticatedListener::Accept(int listener) {
  Fd socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    // For example, no descriptor is free: close a pending connection, or pause,
    // since the listener stays readable.
    if (!pending_.empty()) {
      pending_.pop_front();
    } else {
      Pause(kPause);
    }
    return;
  }
  if (pending_.size() >= kMaxPendingHandshakes) pending_.pop_front();
  pending_.emplace_back();
  pending_.back().socket = std::move(socket);
  pending_.back().since = Clock::now();
}

bool AuthenticatedListener::Hear(PendingHandshake& pending) {
  return pending.answered ? HearProof(pending) : HearHello(pending);
}

bool AuthenticatedListener::HearHello(PendingHandshake& v) {
  const auto more =
      handshake::ReadSome(v.socket.get(), &v.hello, sizeof(v.hello), &v.read);
  if (more != handshake::Got::kAll) return more == handshake::Got::kPart;
  if (v.hello.magic != handshake::kMagic || v.hello.to != options_.self ||
      v.hello.from <= options_.self || v.hello.from >= options_.nodes ||
      v.hello.connection >= options_.connections) {
    return false;
  }
  v.challenge = handshake::NewSecret();
  const Peer& peer = peers_[v.hello.from];
  v.same_offers = v.hello.caller == peer.encryption &&
                  v.hello.listener == options_.encryption;
  const handshake::Answer answer{
      v.challenge,
      handshake::Prove(
          peer.key,
          v.same_offers ? Role::kListener : Role::kListenerOfOtherOffers,
          v.hello, v.challenge)};
  v.read = 0;
  v.answered = true;
  // These are the first bytes on the connection, so the socket has room.
  return send(v.socket.get(), &answer, sizeof(answer), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(sizeof(answer));
}

bool AuthenticatedListener::HearProof(PendingHandshake& v) {
  const auto more =
      handshake::ReadSome(v.socket.get(), &v.proof, sizeof(v.proof), &v.read);
  if (more != handshake::Got::kAll) return more == handshake::Got::kPart;
  const auto prove = [&](Role role) {
    return handshake::Prove(peers_[v.hello.from].key, role, v.hello,
                            v.challenge);
  };
  if (!handshake::Same(
          v.proof,
          prove(v.same_offers ? Role::kCaller : Role::kCallerOfOtherOffers))) {
    return false;
  }
  if (!v.same_offers) {
    std::lock_guard lock(mutex_);
    changed_offers_.insert(v.hello.from);
    changed_.notify_all();
    return false;
  }
  fcntl(v.socket.get(), F_SETFL, fcntl(v.socket.get(), F_GETFL) & ~O_NONBLOCK);
  // The peer sends data only after this byte.
  if (send(v.socket.get(), &handshake::kWelcome, 1, MSG_NOSIGNAL) != 1)
    return false;
  Authenticated met{std::move(v.socket), prove(Role::kTls)};
  std::unique_lock lock(mutex_);
  if (const OnCall on_call = on_call_) {
    lock.unlock();
    on_call(v.hello.from, v.hello.connection, std::move(met));
    return true;
  }
  authenticated_[{v.hello.from, v.hello.connection}] = std::move(met);
  changed_.notify_all();
  return true;
}

}  // namespace maypole::worker
