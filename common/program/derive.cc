#include "common/program/derive.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace maypole {

std::string Derive(const std::string& key, const std::string& text) {
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash,
       &size);
  std::string out;
  for (unsigned int i = 0; i < size; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[hash[i] >> 4];
    out += kDigits[hash[i] & 15];
  }
  return out;
}

}  // namespace maypole
