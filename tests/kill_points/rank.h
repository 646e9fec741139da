// A rank of a round: plays random programs until it gets an error or the round
// is over, then checks that its memory does not change any more.
//
// Thread contract: runs in a process of its own.
#ifndef MAYPOLE_TESTS_KILL_POINTS_RANK_H_
#define MAYPOLE_TESTS_KILL_POINTS_RANK_H_

#include <string>
#include <vector>

#include "tests/kill_points/scoreboard.h"
#include "tests/properties/spec/spec.h"

namespace maypole::kill_points {

struct Round {
  properties::World world;
  std::vector<std::string> agents;
  std::string job;
  uint64_t seed = 0;
  int programs = 100;  // at most
  int play_ms = 2000;  // at most
  int grace_ms = 300;  // how long memory is watched after an error
  int victim = 0;
};

// Exit status of the rank's process.
int RunRank(const Round& round, int rank, Scoreboard* board);

}  // namespace maypole::kill_points

#endif  // MAYPOLE_TESTS_KILL_POINTS_RANK_H_
