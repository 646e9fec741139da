// ParseNumber: reads a text that consists of a whole number and nothing else.
//
//   int port = 0;
//   if (!ParseNumber(text, 0, 65535, &port)) ...
//
// Thread contract: a pure function.
#ifndef MAYPOLE_COMMON_PARSE_H_
#define MAYPOLE_COMMON_PARSE_H_

#include <charconv>
#include <limits>
#include <string_view>
#include <type_traits>

namespace maypole {

// True if the text consists of decimal digits (after a '-' for negative numbers
// if T is signed) and the number is from `least` to `most` (by default, the
// range of T). Otherwise *out is unchanged.
template <typename T>
bool ParseNumber(std::string_view text, std::type_identity_t<T> least,
                 std::type_identity_t<T> most, T* out) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < least || value > most) {
    return false;
  }
  *out = value;
  return true;
}

template <typename T>
bool ParseNumber(std::string_view text, T* out) {
  using Limits = std::numeric_limits<T>;
  return ParseNumber(text, Limits::min(), Limits::max(), out);
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PARSE_H_
