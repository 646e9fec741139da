#include "client/ctl/text.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace maypole::ctl {
namespace {

constexpr absl::string_view kDots = "...";

bool Begins(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

// The number of bytes of the first `columns` characters.
size_t Bytes(absl::string_view text, size_t columns) {
  size_t i = 0;
  for (size_t n = 0; i < text.size(); ++i) {
    if (Begins(text[i]) && n++ == columns) break;
  }
  return i;
}

}  // namespace

std::string Fold(std::vector<uint64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string out;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] - numbers[end] <= 1) {
      ++end;
    }
    absl::StrAppend(&out, out.empty() ? "" : ",", numbers[i]);
    if (numbers[end] != numbers[i]) absl::StrAppend(&out, "-", numbers[end]);
    i = end + 1;
  }
  return out;
}

std::string Duration(double seconds) {
  if (seconds < 9.95) return absl::StrFormat("%.1fs", std::max(0.0, seconds));
  const auto s = static_cast<int64_t>(seconds);
  if (s < 60) return absl::StrCat(s, "s");
  if (s < 3600) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
  return absl::StrFormat("%dd%02dh", s / 86400, s / 3600 % 24);
}

std::string Amount(double n) {
  constexpr std::array<absl::string_view, 7> kUnits = {"",  "k", "M", "G",
                                                       "T", "P", "E"};
  size_t unit = 0;
  for (; n >= 999.5 && unit + 1 < kUnits.size(); ++unit) n /= 1000;
  const int digits = n == 0 || n >= 99.95 ? 0 : n >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f%s", digits, n, kUnits[unit]);
}

std::string Count(uint64_t n, absl::string_view one) {
  return absl::StrCat(n, " ", one, n == 1 ? "" : "s");
}

std::string Printable(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // 0xc2 0x80..0x9f are control characters too (C1).
    const bool c1 = c == 0xc2 && i + 1 < text.size() &&
                    static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c1) ++i;
    out += c < ' ' || c == 0x7f || c1 ? '?' : text[i];
  }
  return out;
}

size_t Width(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), Begins));
}

std::string CutMiddle(absl::string_view text, size_t columns) {
  const size_t width = Width(text);
  if (columns == 0 || width <= columns) return std::string(text);
  if (columns <= kDots.size() + 1) return CutEnd(text, columns);
  const size_t tail = (columns - kDots.size()) / 2;
  const size_t head = columns - kDots.size() - tail;
  return absl::StrCat(text.substr(0, Bytes(text, head)), kDots,
                      text.substr(Bytes(text, width - tail)));
}

std::string Wrap(absl::string_view text, size_t columns) {
  std::string out, line;
  bool fresh = true;  // the line has no word yet
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!fresh && columns > 0 && Width(line) + 1 + Width(word) > columns) {
      out += line + "\n";
      line = "  ";
      fresh = true;
    }
    absl::StrAppend(&line, fresh ? "" : " ", word);
    fresh = false;
  }
  return out + line + "\n";
}

std::string CutEnd(absl::string_view text, size_t columns) {
  if (columns == 0 || Width(text) <= columns) return std::string(text);
  if (columns <= kDots.size()) {
    return std::string(text.substr(0, Bytes(text, columns)));
  }
  return absl::StrCat(text.substr(0, Bytes(text, columns - kDots.size())),
                      kDots);
}

}  // namespace maypole::ctl
