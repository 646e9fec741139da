// Finds out why a TLS connection fails, by repeating the handshake with
// OpenSSL. gRPC only reports "certificate verify failed" or "Socket closed".
//
// The peer may be any program, and misbehave. So OpenSSL works on memory
// buffers, and this file transfers the bytes: with a deadline, and without
// SIGPIPE (OpenSSL's own socket BIO raises it when the peer has hung up).
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/program/address.h"
#include "common/program/certificate.h"
#include "common/program/tls.h"
#include "common/system/fd.h"

namespace maypole {
namespace {

using Context = std::unique_ptr<SSL_CTX, FreeBy<SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, FreeBy<SSL_free>>;

using Deadline = std::chrono::steady_clock::time_point;

// gRPC's protocol in the format of ALPN: length, name.
constexpr unsigned char kProtocols[] = {2, 'h', '2'};

Context MakeContext(const TlsOptions& options) {
  Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return context;
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  SSL_CTX_set_alpn_protos(context.get(), kProtocols, sizeof(kProtocols));
  if (!options.enabled()) return context;
  for (const Certificate& ca : ReadCertificates(options.ca)) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), ca.get());
  }
  bool first = true;
  for (const Certificate& c : ReadCertificates(options.cert)) {
    if (std::exchange(first, false)) {
      SSL_CTX_use_certificate(context.get(), c.get());
    } else {
      SSL_CTX_add1_chain_cert(context.get(), c.get());
    }
  }
  const PrivateKey key = ReadPrivateKey(options.key);
  if (key != nullptr) SSL_CTX_use_PrivateKey(context.get(), key.get());
  return context;
}

// One connection: OpenSSL's state and the socket.
class Probe {
 public:
  // How a step has ended.
  enum class End {
    kDone,
    kError,   // received an alert, or bytes that OpenSSL refuses: see reason()
    kHungUp,  // without an alert
    kSilent,  // the deadline has passed
  };

  Probe(const TlsOptions& options, const std::string& name, Fd socket,
        Deadline deadline)
      : context_(MakeContext(options)),
        ssl_(context_ == nullptr ? nullptr : SSL_new(context_.get())),
        socket_(std::move(socket)),
        deadline_(deadline) {
    BIO* in = BIO_new(BIO_s_mem());
    BIO* out = BIO_new(BIO_s_mem());
    if (ssl_ == nullptr || in == nullptr || out == nullptr) {
      BIO_free(in);
      BIO_free(out);
      return;
    }
    SSL_set_bio(ssl_.get(), in, out);  // ssl_ owns them now
    SSL_set_tlsext_host_name(ssl_.get(), name.c_str());
    ready_ = true;
  }

  bool ready() const { return ready_; }
  SSL* ssl() const { return ssl_.get(); }

  End Handshake() {
    return Step([this] { return SSL_connect(ssl_.get()); });
  }
  // Receives the first byte that the peer sends.
  End Hear() {
    return Step([this] {
      char byte;
      return SSL_read(ssl_.get(), &byte, 1);
    });
  }
  // OpenSSL's error code of the last kError.
  unsigned long reason() const { return reason_; }

 private:
  template <typename F>
  End Step(F&& f) {
    for (;;) {
      ERR_clear_error();
      const int result = f();
      reason_ = ERR_peek_last_error();
      const int error = SSL_get_error(ssl_.get(), result);
      if (result == 1) {
        Flush();  // if the peer hangs up now, Hear() reports it
        return End::kDone;
      }
      if (error == SSL_ERROR_ZERO_RETURN) return End::kHungUp;
      if (error != SSL_ERROR_WANT_READ) return End::kError;
      if (!Flush()) return End::kHungUp;
      if (const End end = Receive(); end != End::kDone) return end;
    }
  }

  // Sends OpenSSL's output, a hello and a certificate, which fit into the
  // socket's buffer. False if the peer has hung up.
  bool Flush() {
    char* data = nullptr;
    BIO* out = SSL_get_wbio(ssl_.get());
    const long bytes = BIO_get_mem_data(out, &data);
    if (bytes <= 0) return true;
    const ssize_t n =
        ::send(socket_.get(), data, static_cast<size_t>(bytes), MSG_NOSIGNAL);
    (void)BIO_reset(out);
    return n == bytes;
  }

  // Waits for bytes and passes them to OpenSSL.
  End Receive() {
    char bytes[4096];
    for (;;) {
      const int left = MillisLeft(deadline_);
      if (left == 0) return End::kSilent;
      pollfd wait{socket_.get(), POLLIN, 0};
      if (::poll(&wait, 1, left) != 1) continue;
      const ssize_t n = ::recv(socket_.get(), bytes, sizeof(bytes), 0);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n <= 0) return End::kHungUp;
      BIO_write(SSL_get_rbio(ssl_.get()), bytes, static_cast<int>(n));
      return End::kDone;
    }
  }

  const Context context_;
  const Connection ssl_;
  const Fd socket_;
  const Deadline deadline_;
  bool ready_ = false;
  unsigned long reason_ = 0;
};

// The alert that the peer has sent, or empty.
std::string Alert(const Probe& probe, Probe::End end) {
  if (end != Probe::End::kError || ERR_GET_LIB(probe.reason()) != ERR_LIB_SSL ||
      ERR_GET_REASON(probe.reason()) < SSL_AD_REASON_OFFSET) {
    return "";
  }
  const char* text = ERR_reason_error_string(probe.reason());
  return text == nullptr ? "alert" : text;
}

// True if the peer has sent bytes that are not TLS. (A peer that says nothing
// or hangs up may be stopped, overloaded or about to end: that does not show
// whether it uses TLS.)
bool SpeaksSomethingElse(const Probe& probe, Probe::End end) {
  if (end != Probe::End::kError || ERR_GET_LIB(probe.reason()) != ERR_LIB_SSL) {
    return false;
  }
  const int reason = ERR_GET_REASON(probe.reason());
  return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
         reason == SSL_R_HTTPS_PROXY_REQUEST ||
         reason == SSL_R_UNKNOWN_PROTOCOL;
}

std::string NotAccepted(const std::string& alert) {
  return absl::StrCat("it does not accept this side's certificate (", alert,
                      "); --tls_cert must be of the same CA as the "
                      "coordinator's, and not expired");
}

// After the handshake: what is wrong with the server's certificate; "" if
// nothing is.
std::string ServerObjection(SSL* ssl, const std::string& name) {
  const Certificate theirs(SSL_get1_peer_certificate(ssl));
  if (theirs == nullptr) return "it shows no certificate";
  if (const long error = SSL_get_verify_result(ssl); error != X509_V_OK) {
    return absl::StrCat("its certificate ",
                        Objection(static_cast<int>(error), theirs.get()));
  }
  if (IsFor(theirs.get(), name)) return "";
  return absl::StrCat("its certificate is for ", NamesOf(theirs.get()),
                      ", not for '", name,
                      "'; name the coordinator by one of these, or give one "
                      "with --tls_server_name");
}

}  // namespace

std::string DiagnoseTls(const std::string& address, const TlsOptions& options) {
  const absl::StatusOr<Address> parsed = ParseAddress("address", address);
  if (!parsed.ok()) return "";
  const Deadline deadline = std::chrono::steady_clock::now() + kDiagnosisTime;
  Fd fd = ConnectTcp(*parsed, deadline);
  if (!fd.valid()) return "";
  const std::string name = options.server_name.empty()
                               ? WithoutBrackets(parsed->host)
                               : options.server_name;
  Probe probe(options, name, std::move(fd), deadline);
  if (!probe.ready()) return "";
  const Probe::End end = probe.Handshake();
  const std::string alert = Alert(probe, end);
  const bool done = end == Probe::End::kDone;
  if (!options.enabled()) {
    return done || !alert.empty()
               ? "it speaks TLS: give --tls_ca, --tls_cert and --tls_key"
               : "";
  }
  if (!alert.empty()) return NotAccepted(alert);
  if (SpeaksSomethingElse(probe, end)) {
    return "it does not speak TLS: start it with --tls_ca, --tls_cert and "
           "--tls_key, or leave them out here";
  }
  if (!done) return "";
  if (std::string text = ServerObjection(probe.ssl(), name); !text.empty()) {
    return text;
  }
  // With TLS 1.3 a server checks our certificate after our handshake is done.
  // If it accepts the certificate, it sends its HTTP/2 settings; otherwise
  // gRPC's server hangs up without an alert.
  const Probe::End late = probe.Hear();
  if (late == Probe::End::kHungUp) {
    return NotAccepted("it hangs up after receiving it");
  }
  const std::string refusal = Alert(probe, late);
  return refusal.empty() ? "" : NotAccepted(refusal);
}

}  // namespace maypole
