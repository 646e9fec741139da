// Derive: derives secrets from another secret.
//
//   Derive(key, "token of train-7")   // 64 hexadecimal digits
//
// Thread contract: pure function.
#ifndef MAYPOLE_COMMON_PROGRAM_DERIVE_H_
#define MAYPOLE_COMMON_PROGRAM_DERIVE_H_

#include <string>

namespace maypole {

// HMAC-SHA-256 in hexadecimal. The result reveals nothing about `key`, nor
// about the result for another text.
std::string Derive(const std::string& key, const std::string& text);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_DERIVE_H_
