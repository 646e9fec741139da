// Interruption: what happens while a rank stands between two steps of the
// board's protocol.
//
// Purpose: a turn of a process runs to its end, but for the kill points in the
// code (common/board/kill_point.h): at each of them the seed may let others go
// on for a while before the rank does, or let the rank die right there.
//
// Thread contract: one at a time in a process: the hook is global.
#ifndef MAYPOLE_TESTS_SIMULATION_INTERRUPTION_H_
#define MAYPOLE_TESTS_SIMULATION_INTERRUPTION_H_

#include <functional>
#include <string>

#include "tests/simulation/stage.h"

namespace maypole::simulation {

// Thrown at a kill point: the rank that runs there dies.
struct Killed {};

class Interruption {
 public:
  // go_on: one step of somebody.
  Interruption(Stage* stage, std::function<void()> go_on);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // Runs a turn of a rank, interruptible; true if the rank has died in it.
  // *points_left: after how many more points it dies; 0: it does not.
  bool Run(int* points_left, const std::function<void()>& turn);

 private:
  static void OnPoint(const char* name);
  void AtPoint(const char* name);

  Stage* const stage_;
  const std::function<void()> go_on_;
  int* points_left_ = nullptr;  // of who runs; null: nobody
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_INTERRUPTION_H_
