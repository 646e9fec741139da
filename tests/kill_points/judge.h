// Judge: checks the promises on the records of a round's survivors.
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

// Judges a round in which rank `dead` died (-1: no rank died, but the
// executor). Every survivor must get an error in time that contains `words`; no
// wrong result may be returned as a success; no memory may be written
// afterwards; and the ranks of a node must return the same outcomes.
Verdict JudgeDeath(const Round& round, const Scoreboard& board, int dead,
                   int64_t died_ns, const std::string& words);

// Judges a round without a death: everything must end without an error.
Verdict JudgePeace(const Round& round, const Scoreboard& board);

}  // namespace maypole::kill_points

#endif  // MAYPOLE_TESTS_KILL_POINTS_JUDGE_H_
