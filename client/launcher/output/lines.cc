#include "client/launcher/output/lines.h"

#include <algorithm>
#include <utility>

namespace maypole::launcher {
namespace {

// The lines that Python prints between chained tracebacks.
bool IsChain(std::string_view line) {
  return line.starts_with("The above exception was the direct cause of") ||
         line.starts_with("During handling of the above exception, another");
}

}  // namespace

std::vector<LinePiece> LineSplitter::Feed(std::string_view bytes) {
  std::vector<LinePiece> pieces;
  buffer_.append(bytes);
  size_t start = 0;
  while (true) {
    size_t at = buffer_.find_first_of("\r\n", start);
    if (at == std::string::npos) break;
    bool is_return = buffer_[at] == '\r';
    // A '\r' that came last may be half of "\r\n": wait for what follows.
    if (is_return && at + 1 == buffer_.size()) break;
    bool both = is_return && buffer_[at + 1] == '\n';
    pieces.push_back(
        {.text = buffer_.substr(start, at - start),
         .end = is_return && !both ? LineEnd::kReturn : LineEnd::kNewline});
    start = at + (both ? 2 : 1);
  }
  buffer_.erase(0, start);
  if (buffer_.size() >= kMaxLineBytes) pieces.push_back(*TakePartial());
  return pieces;
}

std::optional<LinePiece> LineSplitter::TakePartial() {
  if (buffer_.empty()) return std::nullopt;
  LinePiece piece{.text = std::exchange(buffer_, {}), .end = LineEnd::kNone};
  if (piece.text.back() == '\r') {
    piece.text.pop_back();
    piece.end = LineEnd::kReturn;
  }
  return piece;
}

void Tail::Add(const LinePiece& piece, Time now) {
  size_t room = kTailLineBytes - std::min(kTailLineBytes, current_.size());
  current_.append(piece.text, 0, room);
  switch (piece.end) {
    case LineEnd::kNewline:
      EndLine(now);
      break;
    case LineEnd::kReturn:
      current_.clear();  // a progress bar: what follows overwrites it
      break;
    case LineEnd::kNone:
      break;
  }
}

void Tail::EndLine(Time now) {
  if (traceback_) ++since_traceback_;
  if (current_.starts_with("Traceback (most recent call last)")) {
    if (!std::exchange(chained_, false)) {
      traceback_ = now;
      since_traceback_ = 1;
      maypole_error_ = own_cause_ = false;
    }
  } else if (IsChain(current_)) {
    chained_ = true;
    own_cause_ = !maypole_error_;
  }
  if (current_.find("HorovodInternalError: ") != std::string::npos) {
    maypole_error_ = !own_cause_;
  }
  lines_.push_back(std::exchange(current_, {}));
  if (lines_.size() > kTailLines) lines_.pop_front();
}

size_t Tail::telling_lines() const {
  return std::min(lines_.size(), traceback_ ? since_traceback_ : kTellingLines);
}

std::vector<std::string> Tail::Lines() const {
  std::vector<std::string> lines(lines_.begin(), lines_.end());
  if (!current_.empty()) lines.push_back(current_);
  return lines;
}

}  // namespace maypole::launcher
