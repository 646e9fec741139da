// Judge: the promises, checked on what the survivors of a round have told.
#ifndef MAYPOLE_TESTS_KILL_POINTS_JUDGE_H_
#define MAYPOLE_TESTS_KILL_POINTS_JUDGE_H_

#include <string>

#include "tests/kill_points/rank.h"
#include "tests/kill_points/scoreboard.h"

namespace maypole::kill_points {

struct Verdict {
  std::string wrong;    // "" if nothing
  double worst_ms = 0;  // from the death to the end of the last operation
};

// `dead` (-1: no rank; the executor died) died: did every survivor get an error
// in time that says so
// (`words`), nothing wrong as a success, nothing
// written afterwards, and those of a node the same?
Verdict JudgeDeath(const Round& round, const Scoreboard& board, int dead,
                   int64_t died_ns, const std::string& words);

// Nobody died: did everything end well?
Verdict JudgePeace(const Round& round, const Scoreboard& board);

}  // namespace maypole::kill_points

#endif  // MAYPOLE_TESTS_KILL_POINTS_JUDGE_H_
