#include "worker/backend/peer_socket.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace maypole::worker {
namespace {

constexpr unsigned char kIdentity[] = "maypole";
// Plain bytes of a record.
constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// Plain bytes that are encrypted before they are sent: less system calls, and
// they stay in the processor's cache.
constexpr size_t kBatchBytes = 8 * kRecordBytes;
// Encrypted bytes that are read at once.
constexpr size_t kReadBytes = 8 * (kRecordBytes + 256);

bool HasAes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") != 0;
#elif defined(__aarch64__)
  constexpr unsigned long kAes = 1ul << 3;  // HWCAP_AES
  return (getauxval(AT_HWCAP) & kAes) != 0;
#else
  return false;
#endif
}

// The innermost reason of OpenSSL's errors of this thread, which it forgets.
std::string TakeOpensslReason() {
  const char* reason = nullptr;
  while (const unsigned long error = ERR_get_error()) {
    if (reason == nullptr) reason = ERR_reason_error_string(error);
  }
  return reason == nullptr ? "unknown" : reason;
}

size_t Sum(const iovec* parts, int count) {
  size_t sum = 0;
  for (int i = 0; i < count; ++i) sum += parts[i].iov_len;
  return sum;
}

}  // namespace

// --- TLS ---------------------------------------------------------------------

class PeerSocket::Tls {
 public:
  Tls(int fd, const handshake::Secret& key, TlsSide side);
  ~Tls() { SSL_free(ssl_); }
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  bool valid() const { return ssl_ != nullptr; }
  absl::StatusOr<short> Handshake();
  std::string Suite() const { return SSL_get_cipher_name(ssl_); }
  ssize_t Read(const iovec* parts, int count);
  ssize_t Write(const iovec* parts, int count);
  bool has_unsent() const { return unsent_; }

 private:
  static SSL_CTX* Context();
  static const BIO_METHOD* Sink();
  static int AddToSink(BIO* bio, const char* data, size_t bytes,
                       size_t* written);
  static int UseKey(SSL* ssl, const EVP_MD* hash,
                    const unsigned char** identity, size_t* identity_bytes,
                    SSL_SESSION** session);
  static int FindKey(SSL* ssl, const unsigned char* identity,
                     size_t identity_bytes, SSL_SESSION** session);
  SSL_SESSION* NewSession() const;
  // Sends what is unsent. Returns false, with errno, if some of it stays.
  bool Flush();
  // Encrypts; returns false if OpenSSL fails.
  bool Seal(const void* data, size_t bytes);
  // -1 with errno of what stops this end; 0: the other end has ended it.
  ssize_t ReadOnce(void* data, size_t bytes);

  const int fd_;
  const handshake::Secret key_;
  const TlsSide side_;
  std::mutex mutex_;  // guards ssl_
  SSL* ssl_ = nullptr;
  // What ssl_ has encrypted; up to sent_ it was sent.
  std::vector<char> out_;
  size_t sent_ = 0;
  bool unsent_ = false;  // for the writing thread; without a reader's alert
  uint64_t sealed_ = 0;  // plain bytes under the present key
  std::vector<char> gathered_;
  int failure_ = 0;  // errno of what has failed for good, for the next Read()
};

PeerSocket::Tls::Tls(int fd, const handshake::Secret& key, TlsSide side)
    : fd_(fd), key_(key), side_(side) {
  SSL_CTX* const context = Context();
  ssl_ = context == nullptr ? nullptr : SSL_new(context);
  BIO* const from = BIO_new_socket(fd, BIO_NOCLOSE);
  BIO* const to = BIO_new(Sink());
  if (ssl_ == nullptr || from == nullptr || to == nullptr) {
    BIO_free(from);
    BIO_free(to);
    SSL_free(std::exchange(ssl_, nullptr));
    return;
  }
  BIO_set_data(to, this);
  BIO_set_init(to, 1);
  SSL_set_bio(ssl_, from, to);
  SSL_set_app_data(ssl_, this);
  if (side.calls) {
    SSL_set_connect_state(ssl_);
    // Nobody has a certificate, so a listener that shows one is a stranger. A
    // listener without one can accept only callers that know the key.
    SSL_set_verify(ssl_, SSL_VERIFY_PEER, nullptr);
  } else {
    SSL_set_accept_state(ssl_);
  }
}

SSL_CTX* PeerSocket::Tls::Context() {
  static SSL_CTX* const context = [] {
    SSL_CTX* const c = SSL_CTX_new(TLS_method());
    if (c == nullptr) return c;
    // An end prefers ChaCha20 if it has no AES, and the listener takes what the
    // caller prefers in that case.
    const char* const suites =
        HasAes() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                 : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_CIPHER_SERVER_PREFERENCE |
                               SSL_OP_PRIORITIZE_CHACHA |
                               SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(
        c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_psk_use_session_callback(c, UseKey);
    SSL_CTX_set_psk_find_session_callback(c, FindKey);
    SSL_CTX_set_default_read_buffer_len(c, kReadBytes);
    if (SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_ciphersuites(c, suites) == 1 &&
        SSL_CTX_set1_groups_list(c, "X25519") == 1 &&
        SSL_CTX_set_num_tickets(c, 0) == 1) {
      return c;
    }
    SSL_CTX_free(c);
    return static_cast<SSL_CTX*>(nullptr);
  }();
  return context;
}

// Takes all that OpenSSL writes, so that no record is ever half in its hands.
const BIO_METHOD* PeerSocket::Tls::Sink() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const m =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "maypole");
    BIO_meth_set_write_ex(m, AddToSink);
    BIO_meth_set_ctrl(m, [](BIO*, int command, long, void*) -> long {
      return command == BIO_CTRL_FLUSH ? 1 : 0;
    });
    return m;
  }();
  return method;
}

int PeerSocket::Tls::AddToSink(BIO* bio, const char* data, size_t bytes,
                               size_t* written) {
  auto* const tls = static_cast<Tls*>(BIO_get_data(bio));
  tls->out_.insert(tls->out_.end(), data, data + bytes);
  *written = bytes;
  return 1;
}

SSL_SESSION* PeerSocket::Tls::NewSession() const {
  // The key is for each suite with its hash, SHA-256.
  constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
  SSL_SESSION* const session = SSL_SESSION_new();
  const SSL_CIPHER* const suite = SSL_CIPHER_find(ssl_, kAes128GcmSha256);
  if (session != nullptr && suite != nullptr &&
      SSL_SESSION_set1_master_key(session, key_.data(), key_.size()) == 1 &&
      SSL_SESSION_set_cipher(session, suite) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int PeerSocket::Tls::UseKey(SSL* ssl, const EVP_MD* hash,
                            const unsigned char** identity,
                            size_t* identity_bytes, SSL_SESSION** session) {
  *session = nullptr;
  if (hash != nullptr && EVP_MD_get_type(hash) != NID_sha256) return 1;
  *session = static_cast<Tls*>(SSL_get_app_data(ssl))->NewSession();
  *identity = kIdentity;
  *identity_bytes = sizeof(kIdentity);
  return *session == nullptr ? 0 : 1;
}

int PeerSocket::Tls::FindKey(SSL* ssl, const unsigned char* identity,
                             size_t identity_bytes, SSL_SESSION** session) {
  *session = nullptr;
  if (identity_bytes != sizeof(kIdentity) ||
      std::memcmp(identity, kIdentity, sizeof(kIdentity)) != 0) {
    return 1;
  }
  *session = static_cast<Tls*>(SSL_get_app_data(ssl))->NewSession();
  return *session == nullptr ? 0 : 1;
}

absl::StatusOr<short> PeerSocket::Tls::Handshake() {
  std::lock_guard lock(mutex_);
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_);
  const int read_error = errno;
  const int error = SSL_get_error(ssl_, done);
  const bool flushed = Flush();
  if (!flushed && errno != EAGAIN) {
    return absl::UnavailableError(
        absl::StrCat("the TLS handshake failed: ", std::strerror(errno)));
  }
  const short events = flushed ? 0 : POLLOUT;
  if (done == 1) {
    // With another key the handshake would have failed; nothing else may do.
    if (SSL_session_reused(ssl_) == 1) {
      // Not before: the kernel would no longer report what was read ahead.
      SSL_set_read_ahead(ssl_, 1);
      return events;
    }
    return absl::PermissionDeniedError(
        "the TLS handshake failed: it has not used the job's key");
  }
  if (error == SSL_ERROR_WANT_READ) {
    return static_cast<short>(events | POLLIN);
  }
  if (error == SSL_ERROR_ZERO_RETURN) {
    return absl::UnavailableError(
        "the TLS handshake failed: it has hung up; its log may say why");
  }
  if (error == SSL_ERROR_SYSCALL) {
    return absl::UnavailableError(
        absl::StrCat("the TLS handshake failed: ", std::strerror(read_error)));
  }
  return absl::PermissionDeniedError(
      absl::StrCat("the TLS handshake failed (", TakeOpensslReason(),
                   "): a process outside the job is between the two nodes, or "
                   "what they have sent was changed on its way"));
}

bool PeerSocket::Tls::Flush() {
  while (sent_ < out_.size()) {
    const ssize_t n = send(fd_, out_.data() + sent_, out_.size() - sent_,
                           MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    sent_ += static_cast<size_t>(n);
  }
  out_.clear();
  sent_ = 0;
  return true;
}

bool PeerSocket::Tls::Seal(const void* data, size_t bytes) {
  sealed_ += bytes;
  if (sealed_ > side_.rekey_bytes) {
    sealed_ = bytes;
    if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return false;
  }
  const auto* at = static_cast<const char*>(data);
  for (size_t done = 0; done < bytes;) {
    size_t n = 0;
    if (SSL_write_ex(ssl_, at + done, bytes - done, &n) != 1) return false;
    done += n;
  }
  return true;
}

ssize_t PeerSocket::Tls::Write(const iovec* parts, int count) {
  std::lock_guard lock(mutex_);
  if (!Flush()) return -1;
  unsent_ = false;
  size_t rest = std::min(Sum(parts, count), kBatchBytes);
  const auto taken = static_cast<ssize_t>(rest);
  bool sealed = true;
  ERR_clear_error();
  // What is small, and what begins after something small, shares a record.
  gathered_.clear();
  for (int i = 0; i < count && rest > 0 && sealed; ++i) {
    const auto* at = static_cast<const char*>(parts[i].iov_base);
    const size_t bytes = std::min(parts[i].iov_len, rest);
    rest -= bytes;
    size_t first = 0;
    if (!gathered_.empty() || bytes < kRecordBytes) {
      first = std::min(bytes, kRecordBytes - gathered_.size());
      gathered_.insert(gathered_.end(), at, at + first);
    }
    if (rest > 0 && first == bytes && gathered_.size() < kRecordBytes) continue;
    if (!gathered_.empty()) sealed = Seal(gathered_.data(), gathered_.size());
    gathered_.clear();
    if (sealed && first < bytes) sealed = Seal(at + first, bytes - first);
  }
  if (!sealed) {
    TakeOpensslReason();
    errno = EPROTO;
    return -1;
  }
  unsent_ = !Flush();  // what has failed fails again in the next call
  return taken;
}

ssize_t PeerSocket::Tls::ReadOnce(void* data, size_t bytes) {
  size_t n = 0;
  errno = 0;
  const int done = SSL_read_ex(ssl_, data, bytes, &n);
  if (done == 1) return static_cast<ssize_t>(n);
  const int error = errno;
  switch (SSL_get_error(ssl_, done)) {
    case SSL_ERROR_WANT_READ:
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_SYSCALL:
      if (error == 0) return 0;
      errno = error;
      return -1;
    default:
      TakeOpensslReason();
      errno = EBADMSG;
      return -1;
  }
}

ssize_t PeerSocket::Tls::Read(const iovec* parts, int count) {
  std::lock_guard lock(mutex_);
  if (failure_ != 0) {
    errno = failure_;
    return -1;
  }
  ERR_clear_error();
  size_t total = 0;
  for (int i = 0; i < count; ++i) {
    auto* const to = static_cast<char*>(parts[i].iov_base);
    for (size_t at = 0; at < parts[i].iov_len;) {
      const ssize_t n = ReadOnce(to + at, parts[i].iov_len - at);
      if (n <= 0) {
        if (n < 0 && errno != EAGAIN) failure_ = errno;
        // The kernel reports again that a connection has ended or failed, but
        // not that a record was wrong.
        if (failure_ == EBADMSG || total == 0) return n;
        return static_cast<ssize_t>(total);
      }
      at += static_cast<size_t>(n);
      total += static_cast<size_t>(n);
    }
  }
  return static_cast<ssize_t>(total);
}

// --- The socket --------------------------------------------------------------

PeerSocket::PeerSocket() = default;
PeerSocket::PeerSocket(Fd fd) : fd_(std::move(fd)) {}
PeerSocket::PeerSocket(PeerSocket&& other) noexcept = default;
PeerSocket& PeerSocket::operator=(PeerSocket&& other) noexcept = default;
PeerSocket::~PeerSocket() = default;

absl::StatusOr<PeerSocket> PeerSocket::Encrypted(Fd fd,
                                                 const handshake::Secret& key,
                                                 TlsSide side) {
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  PeerSocket socket(std::move(fd));
  socket.tls_ = std::make_unique<Tls>(socket.fd_.get(), key, side);
  if (socket.tls_->valid()) return socket;
  return absl::InternalError(absl::StrCat(
      "OpenSSL refuses TLS 1.3 with a pre-shared key: ", TakeOpensslReason()));
}

absl::StatusOr<short> PeerSocket::Handshake() { return tls_->Handshake(); }

std::string PeerSocket::Suite() const {
  return tls_ == nullptr ? "" : tls_->Suite();
}

void PeerSocket::Reset() {
  tls_.reset();
  fd_.Reset();
}

ssize_t PeerSocket::Read(const iovec* parts, int count) {
  if (tls_ != nullptr) return tls_->Read(parts, count);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(count);
  ssize_t n = -1;
  do {
    n = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  return n;
}

ssize_t PeerSocket::Write(const iovec* parts, int count) {
  if (tls_ != nullptr) return tls_->Write(parts, count);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(count);
  ssize_t n = -1;
  do {
    n = sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n;
}

bool PeerSocket::has_unsent() const {
  return tls_ != nullptr && tls_->has_unsent();
}

std::string ConnectionErrorText(int error) {
  std::string text = std::strerror(error);
  if (error == ETIMEDOUT) {
    text +=
        ": its machine has not answered within --network_timeout; check the "
        "network between the nodes";
  } else if (error == EBADMSG) {
    text =
        "what has arrived is not what it has sent: it was changed, repeated or "
        "put there on its way; look for somebody in the network between the "
        "nodes";
  }
  return text;
}

}  // namespace maypole::worker
