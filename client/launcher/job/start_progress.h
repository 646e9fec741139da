// StartProgress: the line that names the ranks or hosts that are awaited while
// a job starts.
//
// Purpose: small jobs start silently. If a start takes longer than
// kStartPatience, a line says how far it is and what is missing:
//   "12 of 16 ranks have called init(); waiting for node3 (ranks 12-15)"
// On a terminal the line is rewritten in place; elsewhere it comes again only
// when it has changed, at most every kStartRepeat.
//
//   Begin() -> kStartPatience -> Take() gives lines -> End() gives the last one
//
// Thread contract: a value; not synchronized. Times are the caller's.
#ifndef MAYPOLE_CLIENT_LAUNCHER_JOB_START_PROGRESS_H_
#define MAYPOLE_CLIENT_LAUNCHER_JOB_START_PROGRESS_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "client/launcher/output/lines.h"

namespace maypole::launcher {

inline constexpr std::chrono::milliseconds kStartPatience{10000};
inline constexpr std::chrono::milliseconds kStartRepeat{10000};
inline constexpr std::chrono::milliseconds kStartRewrite{1000};

// "1,3-5" of ascending numbers; after some groups "...".
std::string RankGroups(const std::vector<int>& ranks);
// "a, b, c and 5 more"
std::string FirstOf(const std::vector<std::string>& names);

class StartProgress {
 public:
  // width: of the terminal on which the line is rewritten; 0: there is no
  // terminal.
  explicit StartProgress(size_t width) : width_(width) {}

  // The wait begins, unless it has begun already.
  void Begin(Time now);
  // When Take() must be called next.
  std::optional<Time> deadline() const { return due_; }
  bool due(Time now) const { return due_ && now >= *due_; }
  // Call it when a line is due, with its text. Returns what to write; on a
  // terminal it ends with LineEnd::kReturn.
  std::optional<LinePiece> Take(const std::string& text, Time now);
  // The wait is over. If lines were written and the text is not empty, returns
  // the last one.
  std::optional<LinePiece> End(const std::string& text);

 private:
  std::string Cut(std::string text) const;

  size_t width_;
  std::optional<Time> due_;
  std::string last_;  // that was shown; empty: none
};

}  // namespace maypole::launcher

#endif  // MAYPOLE_CLIENT_LAUNCHER_JOB_START_PROGRESS_H_
