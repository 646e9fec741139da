// How secrets are sent between programs, and how they are compared.
//
//   context.AddMetadata(kSecretMetadata, secret);        // a caller
//   if (!EqualSecrets(token, hello.token())) ...refuse...
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_PROGRAM_SECRET_H_
#define MAYPOLE_COMMON_PROGRAM_SECRET_H_

#include <string_view>

namespace maypole {

// The key of the gRPC metadata that carries the cluster secret of every call to
// a coordinator (docs/protocol.md).
inline constexpr char kSecretMetadata[] = "maypole-secret";

// Compares secrets, tokens or proofs. Its duration reveals whether the lengths
// are equal, but nothing about the bytes.
bool EqualSecrets(std::string_view a, std::string_view b);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_SECRET_H_
