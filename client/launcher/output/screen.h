// Screen: merges the lines of many streams into one output.
//
// Purpose: decides which bytes to write so that each line has the prefix of its
// stream, an unfinished line is ended before a line of another stream begins,
// and a progress bar overwrites itself as long as no other stream writes.
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

inline constexpr int kOwnStream = 1 << 30;  // maypolerun's own lines

class Screen {
 public:
  void Write(int stream, std::string_view prefix, const LinePiece& piece);
  void WriteLine(int stream, std::string_view prefix, std::string_view line);
  // Writes the bytes unchanged, without a prefix.
  void WriteBytes(std::string_view bytes) { pending_ += bytes; }
  // Ends an unfinished line.
  void EndLine();

  // Whether at least the last `lines` lines are all this stream's. Lines of
  // maypolerun itself do not count.
  bool LastLinesAre(int stream, size_t lines) const {
    return run_stream_ == stream && run_lines_ >= lines;
  }

  const std::string& pending() const { return pending_; }
  void Consume(size_t bytes) { pending_.erase(0, bytes); }

 private:
  static constexpr int kNobody = -1;

  std::string pending_;
  int open_stream_ = kNobody;  // the stream of the unfinished line
  int run_stream_ = kNobody;   // the stream of the last lines
  size_t run_lines_ = 0;       // how many there are
  bool returned_ = false;      // the unfinished line has ended with '\r'
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_SCREEN_H_
