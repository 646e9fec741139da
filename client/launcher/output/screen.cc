#include "client/launcher/output/screen.h"

namespace maypole::launcher {

void Screen::Write(int stream, std::string_view prefix,
                   const LinePiece& piece) {
  if (stream != kOwnStream) {
    if (run_stream_ != stream) run_lines_ = 0;
    run_stream_ = stream;
    if (piece.end == LineEnd::kNewline) ++run_lines_;
  }
  bool goes_on = open_stream_ == stream && !returned_;
  // A "\r" before the first text, as progress bars write it, has no effect.
  if (piece.end == LineEnd::kReturn && piece.text.empty() && !goes_on) return;
  if (open_stream_ != stream) EndLine();
  if (!goes_on) pending_ += prefix;
  pending_ += piece.text;
  if (piece.end == LineEnd::kNewline) pending_ += '\n';
  if (piece.end == LineEnd::kReturn) pending_ += '\r';
  open_stream_ = piece.end == LineEnd::kNewline ? kNobody : stream;
  returned_ = piece.end == LineEnd::kReturn;
}

void Screen::WriteLine(int stream, std::string_view prefix,
                       std::string_view line) {
  Write(stream, prefix, {.text = std::string(line), .end = LineEnd::kNewline});
}

void Screen::EndLine() {
  if (open_stream_ == kNobody) return;
  pending_ += '\n';
  open_stream_ = kNobody;
  returned_ = false;
}

}  // namespace maypole::launcher
