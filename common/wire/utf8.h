// UTF-8: how it is recognized, and how other text is shown.
//
// Paths, tokens and errors are bytes; JSON and protobuf's strings must be
// UTF-8.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_WIRE_UTF8_H_
#define MAYPOLE_COMMON_WIRE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace maypole {

// The length of the UTF-8 character at the text's beginning; 0 if there is none
// (surrogates and overlong forms are none).
size_t Utf8CharacterBytes(std::string_view text);

// Whether protobuf accepts the text as a string.
bool IsUtf8(std::string_view text);

// The text; each byte that is in no character becomes U+FFFD.
std::string ToUtf8(std::string_view text);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_WIRE_UTF8_H_
