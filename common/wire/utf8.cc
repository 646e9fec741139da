#include "common/wire/utf8.h"

#include <algorithm>

namespace maypole {

size_t Utf8CharacterBytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0 && follows(1)) return 2;
  if (first >= 0xe0 && first < 0xf0 && follows(1) && follows(2)) {
    const bool too_long = first == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = first == 0xed && byte(1) >= 0xa0;
    return too_long || surrogate ? 0 : 3;
  }
  if (first >= 0xf0 && first < 0xf5 && follows(1) && follows(2) && follows(3)) {
    const bool too_long = first == 0xf0 && byte(1) < 0x90;
    const bool too_great = first == 0xf4 && byte(1) >= 0x90;
    return too_long || too_great ? 0 : 4;
  }
  return 0;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = Utf8CharacterBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string ToUtf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t bytes = Utf8CharacterBytes(text);
    out += bytes == 0 ? "\xef\xbf\xbd" : text.substr(0, bytes);
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out;
}

}  // namespace maypole
