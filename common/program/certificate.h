// Checks certificates with OpenSSL, in order to report what is wrong with them
// in more detail than gRPC does. (DiagnoseTls() of tls.h is in
// certificate_probe.cc.)
//
// Thread contract: any thread; the functions have no shared state.
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

// The paths of the files, for error messages.
struct TlsPaths {
  std::string ca;
  std::string cert;
  std::string key;
};

// All certificates in a PEM text, in order; empty if there are none.
std::vector<Certificate> ReadCertificates(const std::string& pem);
// Null if the text has no key that can be read without a passphrase.
PrivateKey ReadPrivateKey(const std::string& pem);

// Describes an error of X509_verify_cert about `certificate`: "has expired (on
// 2026-01-31 12:00:00 UTC)", "was not issued by the CA of --tls_ca", ...
std::string Objection(int error, const X509* certificate);

// The names and addresses for which the certificate is valid, at most 8 of
// them: "localhost, head, 10.0.0.1".
std::string NamesOf(const X509* certificate);
bool IsFor(X509* certificate, const std::string& name);

// Checks that the key belongs to the certificate, that the CA has issued the
// certificate, and that the certificate is valid now.
absl::Status CheckCertificates(const TlsOptions& options,
                               const TlsPaths& paths);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_CERTIFICATE_H_
