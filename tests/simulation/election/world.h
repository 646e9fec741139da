// An election's world: etcd, three coordinators that elect a leader, and the
// executors of a job, with the seed's faults.
//
// Promises: no coordinator writes to an executor unless etcd says that it leads
// (if its clock runs as fast as others'); an executor that has joined a term
// joins no lower one, and refuses it by name; whichever coordinator leads, all
// nodes execute the same operations in the same order, each once; a change of
// leaders does not end the job; after the last fault, a coordinator leads
// within the documented time, and the job ends.
#ifndef MAYPOLE_TESTS_SIMULATION_ELECTION_WORLD_H_
#define MAYPOLE_TESTS_SIMULATION_ELECTION_WORLD_H_

#include <cstdint>
#include <string>
#include <vector>

namespace maypole::simulation {

struct ElectionOptions {
  uint64_t seed = 1;
  bool trace = false;
  bool ignore_loss = false;   // a leader ignores that its lease is over
  bool accept_older = false;  // an executor joins any term
};

struct ElectionResult {
  uint64_t leaders = 0;     // terms
  uint64_t taken_over = 0;  // sessions
  uint64_t refused = 0;     // welcomes of a deposed leader
  uint64_t executed = 0;    // operations, by node
  uint64_t epochs_ended = 0;
  uint64_t two_led = 0;  // tenths of a second, with clocks that allow it
  int64_t longest_without_leader = 0;  // ns, while nothing was wrong
  std::vector<std::string> found;      // promises that were broken
};

ElectionResult PlayElection(const ElectionOptions& options);

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_ELECTION_WORLD_H_
