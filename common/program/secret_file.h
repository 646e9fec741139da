// The cluster secret: one line in a file that only its owner may read.
//
// Thread contract: pure but for the file.
#ifndef MAYPOLE_COMMON_PROGRAM_SECRET_FILE_H_
#define MAYPOLE_COMMON_PROGRAM_SECRET_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace maypole {

inline constexpr size_t kMaxSecretBytes = 255;

absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_SECRET_FILE_H_
