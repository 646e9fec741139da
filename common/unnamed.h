// Names of unnamed operations. They are reused in a ring, for each process set
// and kind: the n-th unnamed operation is called "unnamed.", followed by n
// modulo the size of the ring.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_UNNAMED_H_
#define MAYPOLE_COMMON_UNNAMED_H_

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "common/limits.h"

namespace maypole {

inline constexpr std::string_view kUnnamedPrefix = "unnamed.";

// The size of the ring.
inline uint64_t UnnamedNames(uint32_t process_set) {
  return process_set == 0 ? kUnnamedSlots : kUnnamedSlotsOfASet;
}

// The number in a name of the ring; nullopt for any other name.
inline std::optional<uint64_t> UnnamedNumber(uint32_t process_set,
                                             std::string_view name) {
  if (name.substr(0, kUnnamedPrefix.size()) != kUnnamedPrefix) {
    return std::nullopt;
  }
  uint64_t number = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] =
      std::from_chars(name.data() + kUnnamedPrefix.size(), end, number);
  if (error != std::errc() || at != end ||
      number >= UnnamedNames(process_set)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_UNNAMED_H_
