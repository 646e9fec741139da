// TLS between the coordinator and those who call it: both show a certificate
// of the cluster's own CA.
//
// Purpose: the flags --tls_ca, --tls_cert and --tls_key of all programs, read
// and checked before anything starts, as gRPC's credentials; and one sentence
// on why a connection does not come to be, which gRPC's text does not tell.
//
//   absl::StatusOr<TlsOptions> tls = ReadTlsFiles(ca, cert, key);
//   if (!tls.ok()) ...one clear sentence...
//   tls->server_name = absl::GetFlag(FLAGS_tls_server_name);
//   grpc::ChannelArguments args;
//   SetServerName(*tls, &args);
//   grpc::CreateCustomChannel(address, ClientCredentials(*tls), args);
//
// Thread contract: functions. DiagnoseTls takes up to kDiagnosisTime, whatever
// the other side and the resolver do: call it with no lock held.
//
// Invariants: options are enabled with all three texts or with none.
#ifndef MAYPOLE_COMMON_PROGRAM_TLS_H_
#define MAYPOLE_COMMON_PROGRAM_TLS_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace maypole {

// Common name of the certificates that may make the operator's calls.
inline constexpr char kAdminName[] = "maypole-admin";

inline constexpr size_t kMaxPemBytes = 64 * 1024;

struct TlsOptions {
  // PEM texts; all empty: no TLS.
  std::string ca;
  std::string cert;
  std::string key;
  // A client's: the name that the server's certificate must be for; empty: the
  // host of the address.
  std::string server_name;

  bool enabled() const { return !key.empty(); }
};

// All three paths, or none (then TLS is off). Checks that only its owner may
// read the key, that it belongs to the certificate, and that the certificate
// is the CA's and has not expired.
absl::StatusOr<TlsOptions> ReadTlsFiles(const std::string& ca,
                                        const std::string& cert,
                                        const std::string& key);

// Without TLS: gRPC's insecure ones.
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(
    const TlsOptions& options);
// Every client must show a certificate of the CA.
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(
    const TlsOptions& options);
void SetServerName(const TlsOptions& options, grpc::ChannelArguments* args);

inline constexpr std::chrono::milliseconds kDiagnosisTime(2000);

// Why a client with these options does not get through to the server at
// HOST:PORT, as far as TLS is the reason: "its certificate has expired (on
// ...)" Empty: it is not, or nobody there says anything that tells.
std::string DiagnoseTls(const std::string& address, const TlsOptions& options);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_TLS_H_
