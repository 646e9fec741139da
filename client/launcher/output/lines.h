// LineSplitter cuts a byte stream into lines; Tail remembers the last of them.
//
// Purpose: ranks write when and what they like: whole lines, progress bars
// that return to the line's beginning (\r), prompts without an end. The
// splitter turns that into pieces which can be printed one after the other
// without mixing the lines of two ranks.
//
// Thread contract: values; not synchronized.
//
// Invariants: the texts and ends of all pieces, joined, are the bytes fed
// ("\r\n" counts as "\n"). A splitter holds at most kMaxLineBytes.
#ifndef MAYPOLE_CLIENT_LAUNCHER_OUTPUT_LINES_H_
#define MAYPOLE_CLIENT_LAUNCHER_OUTPUT_LINES_H_

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace maypole::launcher {

using Time = std::chrono::steady_clock::time_point;

inline constexpr size_t kMaxLineBytes = 64 * 1024;  // longer: in pieces
inline constexpr size_t kTailLines = 200;           // kept of each rank
inline constexpr size_t kTailLineBytes = 4096;      // kept of each line
inline constexpr size_t kTellingLines = 10;  // of a stderr without traceback

enum class LineEnd {
  kNewline,  // "\n" or "\r\n"
  kReturn,   // "\r": the next piece overwrites this one on a terminal
  kNone,     // the line goes on in the next piece
};

struct LinePiece {
  std::string text;  // without its end
  LineEnd end = LineEnd::kNone;
};

class LineSplitter {
 public:
  // The lines that these bytes complete.
  std::vector<LinePiece> Feed(std::string_view bytes);
  // What is held back, if anything: the caller has waited long enough.
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
  // How many of the last lines tell why the process ended, as far as one can
  // see: those since the last traceback began, else the last few.
  size_t telling_lines() const;
  // When the last Python traceback began. Chained ones ("the direct cause of
  // the following exception") count as one.
  std::optional<Time> last_traceback() const { return traceback_; }
  // Since then (or ever) a line named Maypole's own error: this process ends
  // because of another.
  bool maypole_error() const { return maypole_error_; }

 private:
  void EndLine(Time now);

  std::deque<std::string> lines_;
  std::string current_;
  std::optional<Time> traceback_;
  bool maypole_error_ = false;
  size_t since_traceback_ = 0;  // lines, with the traceback's first
  bool chained_ = false;        // the next traceback belongs to the last
  bool own_cause_ = false;      // a chain that began with another error
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_OUTPUT_LINES_H_
