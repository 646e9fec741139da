#include "common/program/tls.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/absl_status.h"
#include "common/program/certificate.h"
#include "common/system/fd.h"
#include "grpc/grpc_security_constants.h"

namespace maypole {
namespace {

enum class Readers { kAny, kOwner };

absl::StatusOr<std::string> ReadPem(const std::string& flag,
                                    const std::string& path, Readers readers) {
  const std::string what = absl::StrCat(flag, "=", path);
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return ToAbsl(ErrnoStatus(errno, what));
  }
  if (readers == Readers::kOwner && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        what, ": others than its owner may use it; chmod 600 ", path));
  }
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ToAbsl(ErrnoStatus(errno, what));
    if (n == 0) break;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMaxPemBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": more than ", kMaxPemBytes, " bytes"));
    }
  }
  return text;
}

}  // namespace

absl::StatusOr<TlsOptions> ReadTlsFiles(const std::string& ca,
                                        const std::string& cert,
                                        const std::string& key) {
  TlsOptions options;
  if (ca.empty() && cert.empty() && key.empty()) return options;
  for (const auto& [flag, path] :
       {std::pair("--tls_ca", &ca), std::pair("--tls_cert", &cert),
        std::pair("--tls_key", &key)}) {
    if (!path->empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " is missing: TLS needs --tls_ca, --tls_cert and --tls_key"));
  }
  absl::StatusOr<std::string> text = ReadPem("--tls_ca", ca, Readers::kAny);
  if (!text.ok()) return text.status();
  options.ca = *std::move(text);
  text = ReadPem("--tls_cert", cert, Readers::kAny);
  if (!text.ok()) return text.status();
  options.cert = *std::move(text);
  text = ReadPem("--tls_key", key, Readers::kOwner);
  if (!text.ok()) return text.status();
  options.key = *std::move(text);
  const absl::Status fit = CheckCertificates(options, {ca, cert, key});
  if (!fit.ok()) return fit;
  return options;
}

std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(
    const TlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({options.ca, options.key, options.cert});
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials(
    const TlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions ssl(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ssl.pem_root_certs = options.ca;
  ssl.pem_key_cert_pairs.push_back({options.key, options.cert});
  return grpc::SslServerCredentials(ssl);
}

void SetServerName(const TlsOptions& options, grpc::ChannelArguments* args) {
  if (!options.enabled() || options.server_name.empty()) return;
  args->SetSslTargetNameOverride(options.server_name);
}

}  // namespace maypole
