// CopyText: a text field of the board.
//
// Any rank may write it at any time, so it is copied first and looked at then;
// it ends with its field if nothing ends it earlier.
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
