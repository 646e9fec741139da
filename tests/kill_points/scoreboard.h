// Scoreboard: the records that the ranks of a round write for the judge.
//
// It is in shared memory; each rank writes its own part and then `state`
// (release).
#ifndef MAYPOLE_TESTS_KILL_POINTS_SCOREBOARD_H_
#define MAYPOLE_TESTS_KILL_POINTS_SCOREBOARD_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace maypole::kill_points {

inline constexpr int kRanks = 8;
inline constexpr int kPrograms = 4000;  // of a round, at most
inline constexpr int kOperations = 12;  // of a program, at most

// How an operation ended on a rank.
enum class End : uint8_t { kNotSubmitted = 0, kOk = 1, kError = 2 };

enum class State : int { kStarting = 0, kJoined = 1, kOver = 2 };

struct RankPart {
  std::atomic<State> state;
  std::atomic<int64_t> alive_ns;  // victim only: about every millisecond
  int64_t ended_ns;               // when its last pending operation had ended
  bool failed;                    // it got an error
  char error[1200];               // its text
  char later[1200];               // error of an operation submitted after it
  char wrong[1200];               // what is wrong, if anything
  int programs;
  End ends[kPrograms][kOperations];
};

struct Scoreboard {
  std::atomic<int> stop_at;  // programs to play; rank 0 says so, 0: not yet
  RankPart ranks[kRanks];
};

template <size_t N>
void SetText(char (&to)[N], std::string_view text) {
  const size_t n = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), n);
  to[n] = 0;
}

}  // namespace maypole::kill_points

#endif  // MAYPOLE_TESTS_KILL_POINTS_SCOREBOARD_H_
