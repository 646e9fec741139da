// Why TLS does not come to be: the handshake once more, by hand. gRPC says
// "certificate verify failed", or "Socket closed", and no more.
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/program/address.h"
#include "common/program/certificate.h"
#include "common/program/tls.h"

namespace maypole {
namespace {

using Context = std::unique_ptr<SSL_CTX, FreeBy<SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, FreeBy<SSL_free>>;

constexpr std::chrono::milliseconds kPatience(1000);
// gRPC's protocol, as TLS names it: length, name.
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

void BoundWaits(int fd) {
  timeval time{};
  time.tv_sec = kPatience.count() / 1000;
  time.tv_usec = kPatience.count() % 1000 * 1000;
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
}

// The last alert that the peer has sent, or empty.
std::string Alert() {
  const unsigned long error = ERR_peek_last_error();
  if (ERR_GET_LIB(error) != ERR_LIB_SSL ||
      ERR_GET_REASON(error) < SSL_AD_REASON_OFFSET) {
    return "";
  }
  const char* text = ERR_reason_error_string(error);
  return text == nullptr ? "alert" : text;
}

std::string NotAccepted(const std::string& alert) {
  return absl::StrCat("it does not accept this side's certificate (", alert,
                      "); --tls_cert must be of the same CA as the "
                      "coordinator's, and not expired");
}

// The handshake is done: what of the server's certificate is not as it must be.
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
  const Fd fd = ConnectTcp(*parsed, kPatience);
  if (!fd.valid()) return "";
  BoundWaits(fd.get());
  ERR_clear_error();
  const std::string name = options.server_name.empty()
                               ? WithoutBrackets(parsed->host)
                               : options.server_name;
  const Context context = MakeContext(options);
  const Connection ssl(context == nullptr ? nullptr : SSL_new(context.get()));
  if (ssl == nullptr) return "";
  SSL_set_fd(ssl.get(), fd.get());
  SSL_set_tlsext_host_name(ssl.get(), name.c_str());
  const bool done = SSL_connect(ssl.get()) == 1;
  const std::string alert = Alert();
  if (!options.enabled()) {
    return done || !alert.empty()
               ? "it speaks TLS: give --tls_ca, --tls_cert and --tls_key"
               : "";
  }
  if (!done) {
    return alert.empty() ? "it does not speak TLS: start it with --tls_ca, "
                           "--tls_cert and --tls_key, or leave them out here"
                         : NotAccepted(alert);
  }
  if (std::string text = ServerObjection(ssl.get(), name); !text.empty()) {
    return text;
  }
  // With TLS 1.3 a server looks at our certificate after the handshake is done
  // for us. One that takes it sends its settings; gRPC's hangs up on another
  // without a word.
  char byte;
  ERR_clear_error();
  const int got = SSL_read(ssl.get(), &byte, 1);
  if (got == 1 || SSL_get_error(ssl.get(), got) == SSL_ERROR_WANT_READ) {
    return "";
  }
  const std::string late = Alert();
  return NotAccepted(late.empty() ? "it hangs up when it has seen it" : late);
}

}  // namespace maypole
