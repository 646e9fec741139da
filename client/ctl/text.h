// Words and numbers for a terminal.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_CLIENT_CTL_TEXT_H_
#define MAYPOLE_CLIENT_CTL_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace maypole::ctl {

// "0-63,70": ascending, whatever the order they come in.
std::string Fold(std::vector<uint64_t> numbers);

// "0.4s", "47s", "5m12s", "2h13m", "3d4h"
std::string Duration(double seconds);

// "1 rank", "3 ranks"
std::string Count(uint64_t n, absl::string_view one);

// What a job's program named cannot move the cursor: control characters are
// "?".
std::string Printable(absl::string_view text);

// Columns of a terminal that the text takes (UTF-8, one each).
size_t Width(absl::string_view text);
// At most so many columns; what is left out in the middle, or at the end, is
// "...". 0 columns: no limit.
std::string CutMiddle(absl::string_view text, size_t columns);
std::string CutEnd(absl::string_view text, size_t columns);

// Lines of at most so many columns, broken between words; what follows the
// first is indented. 0 columns: one line. Ends with a newline.
std::string Wrap(absl::string_view text, size_t columns);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_TEXT_H_
