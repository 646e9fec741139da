// Reads a text file that a user has written: a hostfile, a config file, a file
// of flags.
//
// Thread contract: a function; any thread.
#ifndef MAYPOLE_COMMON_SYSTEM_TEXT_FILE_H_
#define MAYPOLE_COMMON_SYSTEM_TEXT_FILE_H_

#include <cstddef>
#include <string>

#include "common/status.h"

namespace maypole {

inline constexpr size_t kMaxTextFileBytes = size_t{16} << 20;

// Sets *out to the text, without the byte order mark that some editors put
// before UTF-8. An error, which names the path and the reason, if it cannot be
// read (a directory), is longer than kMaxTextFileBytes or is UTF-16.
Status ReadTextFile(const std::string& path, std::string* out);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_TEXT_FILE_H_
