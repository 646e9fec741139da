#include "common/program/certificate.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/address.h"

namespace maypole {
namespace {

using Bio = std::unique_ptr<BIO, FreeBy<BIO_free_all>>;
using Store = std::unique_ptr<X509_STORE, FreeBy<X509_STORE_free>>;
using StoreContext =
    std::unique_ptr<X509_STORE_CTX, FreeBy<X509_STORE_CTX_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, FreeBy<GENERAL_NAMES_free>>;

constexpr int kNamesShown = 8;

Bio Over(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// OpenSSL's default would ask for a passphrase on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

std::string TimeText(const ASN1_TIME* time) {
  std::tm tm{};
  char text[32];
  if (ASN1_TIME_to_tm(time, &tm) != 1 ||
      std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &tm) == 0) {
    return "?";
  }
  return text;
}

std::string NameText(const GENERAL_NAME* name) {
  if (name->type == GEN_DNS) {
    const ASN1_STRING* s = name->d.dNSName;
    return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(s)),
                       static_cast<size_t>(ASN1_STRING_length(s)));
  }
  if (name->type != GEN_IPADD) return "";
  const ASN1_STRING* s = name->d.iPAddress;
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(ASN1_STRING_length(s) == 4 ? AF_INET : AF_INET6,
            ASN1_STRING_get0_data(s), text, sizeof(text));
  return text;
}

// X509_V_OK, or the error of the chain, whose first certificate is the leaf.
int Verify(const std::vector<Certificate>& chain,
           const std::vector<Certificate>& cas) {
  const Store store(X509_STORE_new());
  for (const Certificate& ca : cas) X509_STORE_add_cert(store.get(), ca.get());
  STACK_OF(X509)* others = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) {
    sk_X509_push(others, chain[i].get());
  }
  const StoreContext context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), chain[0].get(), others);
  const int error = X509_verify_cert(context.get()) == 1
                        ? X509_V_OK
                        : X509_STORE_CTX_get_error(context.get());
  sk_X509_free(others);
  ERR_clear_error();
  return error;
}

absl::Status Bad(const std::string& flag, const std::string& path,
                 const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(flag, "=", path, ": ", what));
}

}  // namespace

std::vector<Certificate> ReadCertificates(const std::string& pem) {
  std::vector<Certificate> out;
  const Bio bio = Over(pem);
  while (X509* c =
             PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)) {
    out.emplace_back(c);
  }
  ERR_clear_error();
  return out;
}

PrivateKey ReadPrivateKey(const std::string& pem) {
  PrivateKey key(
      PEM_read_bio_PrivateKey(Over(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  return key;
}

std::string Objection(int error, const X509* certificate) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return absl::StrCat("has expired (on ",
                          TimeText(X509_get0_notAfter(certificate)), ")");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return absl::StrCat("is not valid before ",
                          TimeText(X509_get0_notBefore(certificate)),
                          "; check the clocks of both machines");
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return "was not issued by the CA of --tls_ca";
    default:
      return absl::StrCat("is not accepted: ",
                          X509_verify_cert_error_string(error));
  }
}

std::string NamesOf(const X509* certificate) {
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> out;
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names.get());
  for (int i = 0; i < count; ++i) {
    std::string text = NameText(sk_GENERAL_NAME_value(names.get(), i));
    if (!text.empty()) out.push_back(std::move(text));
  }
  if (out.size() > kNamesShown) {
    out.resize(kNamesShown);
    out.push_back("...");
  }
  return absl::StrJoin(out, ", ");
}

bool IsFor(X509* certificate, const std::string& name) {
  if (IsNumericHost(name)) {
    return X509_check_ip_asc(certificate, name.c_str(), 0) == 1;
  }
  return X509_check_host(certificate, name.data(), name.size(), 0, nullptr) ==
         1;
}

absl::Status CheckCertificates(const TlsOptions& options,
                               const TlsPaths& paths) {
  const std::vector<Certificate> cas = ReadCertificates(options.ca);
  if (cas.empty())
    return Bad("--tls_ca", paths.ca, "must contain a certificate (PEM)");
  const std::vector<Certificate> chain = ReadCertificates(options.cert);
  if (chain.empty()) {
    return Bad("--tls_cert", paths.cert, "must contain a certificate (PEM)");
  }
  const PrivateKey key = ReadPrivateKey(options.key);
  if (key == nullptr) {
    return Bad("--tls_key", paths.key,
               "must contain a private key (PEM, without a passphrase)");
  }
  if (X509_check_private_key(chain[0].get(), key.get()) != 1) {
    ERR_clear_error();
    return Bad(
        "--tls_key", paths.key,
        absl::StrCat("is not the key of the certificate in ", paths.cert));
  }
  if (const int error = Verify(chain, cas); error != X509_V_OK) {
    return Bad(
        "--tls_cert", paths.cert,
        absl::StrCat("the certificate ", Objection(error, chain[0].get())));
  }
  return absl::OkStatus();
}

}  // namespace maypole
