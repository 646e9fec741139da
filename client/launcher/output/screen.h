// Screen: the pieces of many streams on one output, lines never mixed.
//
// Purpose: decides which bytes to write so that each line carries the prefix
// of its stream, an unfinished line is ended before another stream's begins,
// and a progress bar still overwrites itself while nobody else writes.
//
//   Screen screen;
//   screen.Write(1, "[1]<stdout>:", {.text = "loss 0.5",
//                                    .end = LineEnd::kNewline});
//   write(fd, screen.pending()...); screen.Consume(n);
//
// Thread contract: a value; not synchronized.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_SCREEN_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_SCREEN_H_

#include <string>
#include <string_view>

#include "client/launcher/output/lines.h"

namespace maypole::launcher {

inline constexpr int kOwnStream = 1 << 30;  // what maypolerun itself says

class Screen {
 public:
  void Write(int stream, std::string_view prefix, const LinePiece& piece);
  void WriteLine(int stream, std::string_view prefix, std::string_view line);
  // These bytes and nothing else.
  void WriteBytes(std::string_view bytes) { pending_ += bytes; }
  // Ends an unfinished line.
  void EndLine();

  // Whether the last lines, as many or more, are all this stream's. What
  // maypolerun said in between does not count.
  bool LastLinesAre(int stream, size_t lines) const {
    return run_stream_ == stream && run_lines_ >= lines;
  }

  const std::string& pending() const { return pending_; }
  void Consume(size_t bytes) { pending_.erase(0, bytes); }

 private:
  static constexpr int kNobody = -1;

  std::string pending_;
  int open_stream_ = kNobody;  // whose line stands unfinished
  int run_stream_ = kNobody;   // whose lines came last, and how many
  size_t run_lines_ = 0;
  bool returned_ = false;  // ... and its cursor is at the line's beginning
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_SCREEN_H_
