// Certificates looked at with OpenSSL, for the sentences that gRPC does not
// have. (DiagnoseTls of tls.h lies in certificate_probe.cc.)
//
// Thread contract: functions; they do not touch shared state.
#ifndef MAYPOLE_COMMON_PROGRAM_CERTIFICATE_H_
#define MAYPOLE_COMMON_PROGRAM_CERTIFICATE_H_

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/program/tls.h"

namespace maypole {

template <auto Free>
struct FreeBy {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Certificate = std::unique_ptr<X509, FreeBy<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;

// For messages.
struct TlsPaths {
  std::string ca;
  std::string cert;
  std::string key;
};

// All certificates of a PEM text, in order; none: there is none in it.
std::vector<Certificate> ReadCertificates(const std::string& pem);
// Null: there is none that can be read without a passphrase.
PrivateKey ReadPrivateKey(const std::string& pem);

// "expired on 2026-01-31 12:00:00 UTC", "was not issued by the CA", ...: what
// X509_verify_cert's `error` says of `certificate`.
std::string Objection(int error, const X509* certificate);

// "localhost, head, 10.0.0.1": the names and addresses that it is for.
std::string NamesOf(const X509* certificate);
bool IsFor(X509* certificate, const std::string& name);

absl::Status CheckCertificates(const TlsOptions& options,
                               const TlsPaths& paths);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_CERTIFICATE_H_
