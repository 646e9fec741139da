// Formats text and numbers for a terminal.
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

// "0-63,70": sorts the numbers and writes runs as ranges.
std::string Fold(std::vector<uint64_t> numbers);

// "0.4s", "47s", "5m12s", "2h13m", "3d4h"
std::string Duration(double seconds);

// "0", "7.25", "130", "1.2k", "45M": two or three digits and their unit.
std::string Amount(double n);

// "1 rank", "3 ranks"
std::string Count(uint64_t n, absl::string_view one);

// Replaces control characters by "?", so that names chosen by a job's program
// cannot move the cursor.
std::string Printable(absl::string_view text);

// The number of terminal columns that the text takes (UTF-8, one per
// character).
size_t Width(absl::string_view text);
// Shortens the text to at most `columns`; "..." replaces the middle or the end.
// 0 columns: no limit.
std::string CutMiddle(absl::string_view text, size_t columns);
std::string CutEnd(absl::string_view text, size_t columns);

// Breaks the text between words into lines of at most `columns`; all lines but
// the first are indented. 0 columns: one line. Ends with a newline.
std::string Wrap(absl::string_view text, size_t columns);

}  // namespace maypole::ctl

#endif  // MAYPOLE_CLIENT_CTL_TEXT_H_
