// Report: the results of many seeds.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_REPORT_H_
#define MAYPOLE_TESTS_SIMULATION_REPORT_H_

#include <cstdint>
#include <string>

#include "tests/simulation/world.h"

namespace maypole::simulation {

class Report {
 public:
  // Prints the broken promises of the seed, and the command that replays it.
  void Add(uint64_t seed, const RunResult& result, bool elastic = false);
  int failures() const { return failures_; }
  const Counts& counts() const { return counts_; }
  std::string Text() const;

 private:
  Counts counts_;
  int failures_ = 0;
};

// "" is kNone. Returns false if there is no sabotage of this name.
bool ReadSabotage(const std::string& name, Sabotage* out);
std::string SabotageNames();

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_REPORT_H_
