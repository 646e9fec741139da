// Reads the cluster secret: one line in a file that only its owner may use.
//
// Thread contract: any thread.
#ifndef MAYPOLE_COMMON_PROGRAM_SECRET_FILE_H_
#define MAYPOLE_COMMON_PROGRAM_SECRET_FILE_H_

#include <cstddef>
#include <string>

#include "common/status.h"

namespace maypole {

inline constexpr size_t kMaxSecretBytes = 255;
// 64 random bits as hexadecimal digits.
inline constexpr size_t kGoodSecretBytes = 16;

// Reads the secret into *out. The file must be a regular file that belongs to
// root or to this process's user, that only its owner may use, and that
// contains one line of printable ASCII; otherwise returns an error. Never
// blocks on a FIFO.
Status ReadSecretFile(const std::string& path, std::string* out);

// A warning about a short secret. Empty if the secret is long enough, or there
// is none.
std::string SecretWarning(const std::string& secret);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_SECRET_FILE_H_
