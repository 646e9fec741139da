// World: one simulated run: nodes, ranks, the coordinator, and their faults.
//
// Purpose: makes a job of a few ranks on a few nodes from the seed, and injects
// the seed's faults, epoch after epoch, until an epoch that began after the
// last fault has ended; then checks that nothing is left behind.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_WORLD_H_
#define MAYPOLE_TESTS_SIMULATION_WORLD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/stage.h"

namespace maypole::simulation {

struct RunOptions {
  uint64_t seed = 1;
  bool trace = false;
  Sabotage sabotage = Sabotage::kNone;
  // Slots of each node. With fewer than 64, each step has its own names, and
  // the coordinator's limit of names is 1.5 times this number.
  uint32_t slots = 64;
  // The ranks want their results compared, and a difference to end the epoch.
  bool checksums = false;
  // Programs have steps that are equal, which the nodes come to execute without
  // the coordinator.
  bool repeats = false;
  bool tree = false;  // nodes tell each other through trees; more of them
  // Nothing bad happens but that the coordinator is killed, often.
  bool restarts = false;
  // Agents die, too, and are started again, as systemd does: with the name that
  // their node had. (Those of an elastic job die anyway, and are started again
  // by maypolerun.)
  bool agents = false;
  // An operator starts and stops timelines.
  bool timelines = false;
};

struct RunResult {
  Counts counts;
  std::vector<std::string> found;  // promises that were broken
};

// Plays one seed.
RunResult Play(const RunOptions& options);

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_WORLD_H_
