// LineSplitter cuts a byte stream into lines; Tail keeps the last lines.
//
// Purpose: ranks may write anything at any time: whole lines, progress bars
// that return to the line's beginning (\r), prompts without a newline. The
// splitter turns that into pieces which can be printed one after the other
// without mixing the lines of two ranks.
//
// Thread contract: values; not synchronized.
//
// Invariants: the concatenated texts and ends of all pieces are the bytes that
// were fed ("\r\n" counts as "\n"). Between calls a splitter holds fewer than
// kMaxLineBytes.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_LINES_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_LINES_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace maypole::launcher {

using Time = std::chrono::steady_clock::time_point;

// The earlier of two times; each may be missing.
inline std::optional<Time> Earlier(std::optional<Time> a,
                                   std::optional<Time> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

inline constexpr size_t kMaxLineBytes = 64 * 1024;  // longer lines are split
inline constexpr size_t kTailLines = 200;           // kept per stream
inline constexpr size_t kTailLineBytes = 4096;      // kept per line
inline constexpr size_t kTellingLines = 10;  // telling_lines() w/o traceback

enum class LineEnd {
  kNewline,  // "\n" or "\r\n"
  kReturn,   // "\r": the next piece overwrites this one on a terminal
  kNone,     // the line continues in the next piece
};

struct LinePiece {
  std::string text;  // without its end
  LineEnd end = LineEnd::kNone;
};

class LineSplitter {
 public:
  // Returns the lines that these bytes complete.
  std::vector<LinePiece> Feed(std::string_view bytes);
  // Returns the unfinished line, if there is one. Call this after waiting long
  // enough for the line's end.
  std::optional<LinePiece> TakePartial();
  bool HasPartial() const { return !buffer_.empty(); }

 private:
  std::string buffer_;  // may end with the '\r' of an undecided "\r\n"
};

// The last lines of one stream, as a terminal would show them.
class Tail {
 public:
  void Add(const LinePiece& piece, Time now);
  std::vector<std::string> Lines() const;
  bool empty() const { return lines_.empty() && current_.empty(); }
  // How many of the last lines probably explain why the process ended: those
  // since the last traceback began; without a traceback, the last few.
  size_t telling_lines() const;
  // When the last Python traceback began. Chained tracebacks ("the direct cause
  // of the following exception") count as one.
  std::optional<Time> last_traceback() const { return traceback_; }
  // True if a line since then (without a traceback: any line) had an error from
  // Maypole that was not caused by an exception of the process itself. Then the
  // process usually ends because of another process.
  bool maypole_error() const { return maypole_error_; }

 private:
  void EndLine(Time now);

  std::deque<std::string> lines_;
  std::string current_;
  std::optional<Time> traceback_;
  bool maypole_error_ = false;
  size_t since_traceback_ = 0;  // lines, including the traceback's first
  bool chained_ = false;        // the next traceback is part of the last one
  bool own_cause_ = false;      // the chain began with an error of its own
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_LINES_H_
