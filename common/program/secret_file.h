// The cluster secret: one line in a file that only its owner may read.
//
// Thread contract: functions; they read the file and nothing else.
#ifndef MAYPOLE_COMMON_PROGRAM_SECRET_FILE_H_
#define MAYPOLE_COMMON_PROGRAM_SECRET_FILE_H_

#include <cstddef>
#include <string>

#include "common/status.h"

namespace maypole {

inline constexpr size_t kMaxSecretBytes = 255;
// 64 random bits as hexadecimal digits.
inline constexpr size_t kGoodSecretBytes = 16;

// The secret, into *out. An error if the file is not a regular one, belongs to
// somebody else than root or this process's user, may be used by others than
// its owner, or does not hold one line of printable ASCII. Never waits.
Status ReadSecretFile(const std::string& path, std::string* out);

// What an operator should be told about a short secret. Empty for a good one,
// and for none at all.
std::string SecretWarning(const std::string& secret);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_SECRET_FILE_H_
