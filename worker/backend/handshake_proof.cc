#include "worker/backend/handshake_proof.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/program/secret.h"

namespace maypole::worker::handshake {
namespace {

template <typename... Parts>
Proof Sign(const Secret& key, const Parts&... parts) {
  unsigned char text[(sizeof(Parts) + ...)];
  size_t at = 0;
  ((std::memcpy(text + at, &parts, sizeof(parts)), at += sizeof(parts)), ...);
  Proof out;
  unsigned int bytes = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), text,
       sizeof(text), out.data(), &bytes);
  return out;
}

}  // namespace

Secret NewSecret() {
  Secret out;
  // For so few bytes, a short read cannot happen. Without random bytes there is
  // no security, so end the process.
  if (getrandom(out.data(), out.size(), 0) !=
      static_cast<ssize_t>(out.size())) {
    std::abort();
  }
  return out;
}

Secret KeyOf(const Secret& lower, const Secret& higher, uint64_t epoch) {
  return Sign(lower, higher, epoch);
}

Proof Prove(const Secret& key, Role role, const Hello& hello,
            const Secret& listener_challenge) {
  return Sign(key, role, hello, listener_challenge);
}

bool Same(const Proof& a, const Proof& b) {
  const auto view = [](const Proof& p) {
    return std::string_view(reinterpret_cast<const char*>(p.data()), p.size());
  };
  return EqualSecrets(view(a), view(b));
}

}  // namespace maypole::worker::handshake
