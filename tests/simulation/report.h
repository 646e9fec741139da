// Report: what playing many seeds has come to.
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
  // Prints what was found in the seed, and how to play it again.
  void Add(uint64_t seed, const RunResult& result);
  int failures() const { return failures_; }
  const Counts& counts() const { return counts_; }
  std::string Text() const;

 private:
  Counts counts_;
  int failures_ = 0;
};

// "" is none. False: there is none of this name.
bool ReadSabotage(const std::string& name, Sabotage* out);
std::string SabotageNames();

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_REPORT_H_
