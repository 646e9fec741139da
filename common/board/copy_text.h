// CopyText: reads a text field of the board.
//
// Any rank may write the field at any time, so CopyText copies it before it
// searches for the end. A text without a terminating zero ends with its field.
//
// Thread contract: any thread.
#ifndef MAYPOLE_COMMON_BOARD_COPY_TEXT_H_
#define MAYPOLE_COMMON_BOARD_COPY_TEXT_H_

#include <cstddef>
#include <cstring>
#include <string>

namespace maypole {

template <size_t N>
std::string CopyText(const char (&field)[N]) {
  char copy[N];
  std::memcpy(copy, field, N);
  return std::string(copy, strnlen(copy, N - 1));
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_BOARD_COPY_TEXT_H_
