// Derive: secrets that are made of another secret.
//
//   Derive(key, "token of train-7")   // 64 hexadecimal digits
//
// Thread contract: pure function.
#ifndef MAYPOLE_COMMON_PROGRAM_DERIVE_H_
#define MAYPOLE_COMMON_PROGRAM_DERIVE_H_

#include <string>

namespace maypole {

// HMAC-SHA-256 in hexadecimal. Who knows the result learns nothing about `key`,
// nor what it gives for another text.
std::string Derive(const std::string& key, const std::string& text);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_DERIVE_H_
