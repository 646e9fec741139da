// TLS between the coordinator and its callers: each side presents a certificate
// of the cluster's own CA.
//
// Purpose: reads the files of the flags --tls_ca, --tls_cert and --tls_key of
// all programs, checks them before anything else starts, and makes gRPC
// credentials from them; also explains why a connection fails, because gRPC's
// message does not.
//
//   absl::StatusOr<TlsOptions> tls = ReadTlsFiles(ca, cert, key);
//   if (!tls.ok()) ...print the message...
//   tls->server_name = absl::GetFlag(FLAGS_tls_server_name);
//   grpc::ChannelArguments args;
//   SetServerName(*tls, &args);
//   grpc::CreateCustomChannel(address, ClientCredentials(*tls), args);
//
// Thread contract: any thread. DiagnoseTls() blocks for up to kDiagnosisTime,
// whatever the peer and the resolver do: call it with no lock held.
//
// Invariants: TlsOptions has all three PEM texts, or none of them.
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

// Common name of the certificates with which a caller may use the Admin
// service.
inline constexpr char kAdminName[] = "maypole-admin";

inline constexpr size_t kMaxPemBytes = 64 * 1024;

struct TlsOptions {
  // PEM texts; all empty: no TLS.
  std::string ca;
  std::string cert;
  std::string key;
  // For clients: the name for which the server's certificate must be valid.
  // Empty: the host of the server's address.
  std::string server_name;

  bool enabled() const { return !key.empty(); }
};

// Needs all three paths, or none (then TLS is off). Checks that only its owner
// may use the key file, that the key belongs to the certificate, and that the
// CA has issued the certificate and it has not expired.
absl::StatusOr<TlsOptions> ReadTlsFiles(const std::string& ca,
                                        const std::string& cert,
                                        const std::string& key);

// gRPC's insecure credentials if TLS is off.
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(
    const TlsOptions& options);
// As above; with TLS, every client must present a certificate of the CA.
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(
    const TlsOptions& options);
void SetServerName(const TlsOptions& options, grpc::ChannelArguments* args);

inline constexpr std::chrono::milliseconds kDiagnosisTime(2000);

// If TLS is the reason why a client with these options cannot connect to the
// server at HOST:PORT, describes it: "its certificate has expired (on ...)".
// Empty if TLS is not the reason, or the server's answer does not show it.
std::string DiagnoseTls(const std::string& address, const TlsOptions& options);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_TLS_H_
